//! What a member does with what others tell it. Owns: the answer to each message. Must not know: how they travel.

use crate::effects::{Effects, Notice};
use crate::ids::{Life, Now, PrefixKey, SessionKey, Tip};
use crate::limits::{ASK_ALL_MAX, PUBLISH_MAX};
use crate::member::ClusterMember;
use crate::message::{Envelope, Message};

impl ClusterMember {
    /// A member spoke, whether it said anything or not. One in a life that is over is told so; two that do so as one member are
    /// told of.
    pub fn spoke(&mut self, from: Life, now: Now) -> Effects {
        let mut effects = Effects::default();
        if let Some(latest) = self.guard.fence(from) {
            self.tell(from.member, Message::Over { latest }, &mut effects);
        }
        if self.lives.heard(from, now) {
            effects.notices.push(Notice::Twice(from.member));
        }
        effects
    }

    /// A message came. One for another member, or from a life that is over, is not heard.
    pub fn receive(&mut self, envelope: Envelope, now: Now) -> Effects {
        let mut effects = Effects::default();
        let from = envelope.from;
        if envelope.to != self.config.own.member {
            return effects;
        }
        if let Some(latest) = self.guard.fence(from) {
            effects.notices.push(Notice::Fenced(from.member));
            // That a life here is over holds whoever says so: two that do not hear one another would wait for that for ever. It is not
            // answered, or they would answer one another as fast as messages travel.
            match envelope.message {
                Message::Over { .. } => self.hear(envelope, &mut effects, now),
                _ => self.tell(from.member, Message::Over { latest }, &mut effects),
            }
            return effects;
        }
        self.guard.mark(from.member, from.incarnation);
        self.hear(envelope, &mut effects, now);
        self.deliver_own(&mut effects, now);
        effects
    }

    pub(crate) fn hear(&mut self, Envelope { from, message, .. }: Envelope, effects: &mut Effects, now: Now) {
        match message {
            Message::Publish { tips, posts } => self.published(from, &tips, &posts, effects),
            Message::Withdraw { session, home, turn } => self.directory.withdraw(&session, home, turn),
            Message::Outdone { session, tip } => self.outdone(session, tip, effects),
            Message::Over { latest } if latest > self.config.own.incarnation => {
                effects.notices.push(Notice::Superseded(latest));
            }
            Message::Over { .. } => {}
            Message::AskTip { call, session } => {
                let tip = self.directory.last_tip(&session);
                self.tell(from.member, Message::TipIs { call, tip }, effects);
            }
            Message::TipIs { call, tip } => self.tip_is(call, from.member, tip, effects, now),
            Message::AskPosts { call, posts } => {
                let view = self.guard.view();
                let held = |post: &PrefixKey| Some((*post, self.directory.holder(post, view)?));
                let held = posts.iter().take(PUBLISH_MAX).filter_map(held).collect();
                self.tell(from.member, Message::PostsAre { call, held }, effects);
            }
            Message::PostsAre { call, held } => self.posts_are(call, &held, effects, now),
        }
    }

    /// Somebody claims to be home, and to hold signposts: for itself only, in the life in which it speaks.
    fn published(
        &mut self,
        from: Life,
        tips: &[(SessionKey, Tip)],
        posts: &[PrefixKey],
        effects: &mut Effects,
    ) {
        for (session, tip) in tips.iter().take(PUBLISH_MAX).filter(|(_, tip)| tip.home == from) {
            let believed = self.directory.publish(*session, *tip, self.guard.view());
            if let Some(tip) = believed.filter(|believed| believed.home.member != from.member) {
                self.tell(from.member, Message::Outdone { session: *session, tip }, effects);
            }
        }
        let posts = &posts[..posts.len().min(PUBLISH_MAX)];
        if from.member != self.config.own.member {
            effects.heard.extend(posts);
        }
        if self.view().members().len() <= ASK_ALL_MAX {
            return; // nobody would ask for signposts
        }
        for post in posts {
            self.directory.publish_post(*post, from, self.guard.view());
        }
    }
}
