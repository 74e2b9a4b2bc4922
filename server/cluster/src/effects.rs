//! What follows from a member's decisions. Owns: the list of it. Must not know: how any of it is carried out.

use crate::ids::{CallId, Incarnation, MemberId, PrefixKey, SessionKey, Tip};
use crate::message::Envelope;
use crate::view::Member;
use turnkv_proto::{BlockHash, NamespaceId};

/// A question to a peer's pool: how many leading ones of these does it have? Its answer goes to `ClusterMember::counted`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// For which lookup.
    pub call: CallId,
    /// Whom.
    pub member: MemberId,
    /// Of which namespace.
    pub namespace: NamespaceId,
    /// A sample of the prefix, in order.
    pub hashes: Vec<BlockHash>,
}

/// A peer that holds leading pages of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// Who.
    pub member: MemberId,
    /// How many of them.
    pub pages: usize,
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The session is at home here.
    Here,
    /// Pull it from its home, and say `pull_failed` if that does not have it.
    Pull(Tip),
    /// A peer holds more of the prefix than is here.
    Holds(Held),
    /// No peer has it: the archive may, else it is computed.
    Nowhere,
    /// The same of a session of which so many turns have ended: its home is gone. Those that follow are counted from there on, or the one
    /// that was its home would be believed when it is back.
    Lost(u32),
}

/// What an operator is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// There is no member left in the view: every session is found on its own host only.
    EmptyView,
    /// The members that were seen are less than half of those known, for so many rounds; the last view stays.
    ViewHeld(u32),
    /// The view differs; everything is published again.
    ViewChanged(u64),
    /// Somebody spoke for a life that is over.
    Fenced(MemberId),
    /// Two servers speak as this member, each in a life of its own.
    Twice(MemberId),
    /// This member's own life is over: another one of it was seen. Whoever embeds it begins a later one, or ends if another
    /// process has.
    Superseded(Incarnation),
    /// One more session than a member publishes ended a turn here: another one made way.
    HomesFull,
}

/// What follows from a verb: all of it has to be carried out.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "what was decided has to be carried out"]
pub struct Effects {
    /// To be sent; nothing waits for it.
    pub send: Vec<Envelope>,
    /// To be asked; the answer, or that there is none, is handed back.
    pub probes: Vec<Probe>,
    /// Calls that are decided, each once.
    pub decided: Vec<(CallId, Decision)>,
    /// Sessions whose copy here goes first: they live elsewhere.
    pub demote: Vec<SessionKey>,
    /// Sessions that stay here and are not published any more: others needed their room.
    pub unpublished: Vec<SessionKey>,
    /// Pages that other members say that they hold.
    pub heard: Vec<PrefixKey>,
    /// The member's own key, to be put under its lease again.
    pub put_own: Option<Member>,
    /// To be logged and counted.
    pub notices: Vec<Notice>,
}
