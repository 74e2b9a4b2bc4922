//! Who the members are, from one of them, and whether those that are sick answer again: beside the calls, so that none of them waits
//! for either. Owns: the one task of a client with a list. Must not know: verbs.

use super::choice::Members;
use crate::deadline::Deadline;
use crate::grpc;
use crate::limits::{MEMBER_WAIT_MIN, MEMBERS_PAUSE_MAX, MEMBERS_PAUSE_MIN, SICK_PAUSE};
use crate::link::Link;
use std::sync::{Arc, Weak};
use tonic::Streaming;
use turnkv_proto::wire::{MembersReply, WatchMembersRequest};

impl Members {
    /// Sees to it that somebody follows the members.
    pub(crate) fn keep_following(self: &Arc<Self>) {
        if !self.is_list() {
            return;
        }
        let mut follower = self.follower.lock();
        if follower.as_ref().is_none_or(|follower| follower.is_finished()) {
            let (listening, looking) = (listen(Arc::downgrade(self)), look_after(Arc::downgrade(self)));
            *follower = Some(tokio::spawn(async move {
                tokio::join!(listening, looking);
            }));
        }
    }
}

/// Hears of the members from one of them, and after that one from another.
async fn listen(members: Weak<Members>) {
    let mut pause = MEMBERS_PAUSE_MIN;
    while let Some(link) = members.upgrade().map(|members| members.usual()) {
        let was_told = hear(&link, &members).await;
        pause = if was_told { MEMBERS_PAUSE_MIN } else { (pause * 2).min(MEMBERS_PAUSE_MAX) };
        tokio::time::sleep(pause).await;
    }
}

/// What one of them tells until it ends. False: nothing.
async fn hear(link: &Link, members: &Weak<Members>) -> bool {
    let Ok(mut told) = ask(link).await else { return false };
    let mut was_told = false;
    while let Ok(Some(reply)) = told.message().await {
        let Some(members) = members.upgrade() else { break };
        members.learn(&reply);
        was_told = true;
    }
    was_told
}

/// Lets those that are sick show that they are well again.
async fn look_after(members: Weak<Members>) {
    while let Some(sick) = members.upgrade().map(|members| members.sick()) {
        for link in sick {
            // Until its breaker's cool-down is over it is left alone.
            if let Err(error) = ask(&link).await {
                tracing::trace!(member = %link.address, %error, "a member does not answer yet");
            }
        }
        tokio::time::sleep(SICK_PAUSE).await;
    }
}

async fn ask(link: &Link) -> crate::error::Result<Streaming<MembersReply>> {
    let ask = |channel| async move { grpc::cluster(channel).watch_members(WatchMembersRequest {}).await };
    let call = link.admit()?;
    call.end(link.rpc(Deadline::after(MEMBER_WAIT_MIN), ask).await)
}
