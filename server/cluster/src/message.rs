//! What members tell one another of the directory. Owns: the messages. Must not know: how they travel; any may be lost, doubled
//! or late.

use crate::ids::{CallId, Incarnation, Life, MemberId, PrefixKey, SessionKey, Tip};

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Who says it, in which life.
    pub from: Life,
    /// To whom.
    pub to: MemberId,
    /// What.
    pub message: Message,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To an authority: I am home of these, and hold these signposts.
    Publish {
        /// Sessions with their turns and pages.
        tips: Vec<(SessionKey, Tip)>,
        /// Signposts.
        posts: Vec<PrefixKey>,
    },
    /// To an authority: that home does not have it any more.
    Withdraw {
        /// Which session.
        session: SessionKey,
        /// The home that had it.
        home: Life,
        /// Up to this turn.
        turn: u32,
    },
    /// To a home: another one has a later turn. From an authority that was told of an earlier one, or from the new home.
    Outdone {
        /// Which session.
        session: SessionKey,
        /// Where it is.
        tip: Tip,
    },
    /// To whoever spoke for a life that is over: a later one was heard of.
    Over {
        /// The latest one known.
        latest: Incarnation,
    },
    /// To an authority: where is it?
    AskTip {
        /// The asker's number for it.
        call: CallId,
        /// Which session.
        session: SessionKey,
    },
    /// The answer.
    TipIs {
        /// The asker's number for it.
        call: CallId,
        /// Where it is, as far as is known: or was, if that member is gone.
        tip: Option<Tip>,
    },
    /// To an authority: who holds these?
    AskPosts {
        /// The asker's number for it.
        call: CallId,
        /// Which signposts.
        posts: Vec<PrefixKey>,
    },
    /// The answer.
    PostsAre {
        /// The asker's number for it.
        call: CallId,
        /// Those of them that somebody holds.
        held: Vec<(PrefixKey, Life)>,
    },
}
