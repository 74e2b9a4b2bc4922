//! What the cluster names things by. Owns: short keys of sessions and prefixes, members and their lives, tips. Must not know:
//! who is there.

use crate::limits::INCARNATION_AHEAD_MS;
use sha2::{Digest, Sha256};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

/// A moment in milliseconds on the caller's monotonic clock.
pub type Now = u64;

/// A member, by a number that stays with its host: made of its stable name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// One life of a member's process: a later one has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// What somebody says is a life; none where no life can have come that far by now.
    pub fn said(number: u64, unix_ms: u64) -> Option<Incarnation> {
        (number <= unix_ms.saturating_add(INCARNATION_AHEAD_MS)).then_some(Incarnation(number))
    }
}

/// A member in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// Who.
    pub member: MemberId,
    /// In which life.
    pub incarnation: Incarnation,
}

/// A turn or a lookup under way at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A session of a namespace, in 16 bytes. Two that agree here cost a miss: what is pulled is asked for by whole hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub [u8; 16]);

/// A prefix of a namespace, by its last page, in 16 bytes. Two that agree here cost a miss, as above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey(pub [u8; 16]);

/// Where a session's last turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tip {
    /// The member that holds the session whole.
    pub home: Life,
    /// Turns that have ended.
    pub turn: u32,
    /// Times that it went to another member since, without a turn.
    pub moves: u32,
    /// Pages that it had then.
    pub pages: u32,
}

impl MemberId {
    /// The number of a name.
    pub fn of(name: &str) -> MemberId {
        let digest: [u8; 32] = Sha256::new().chain_update(b"member").chain_update(name).finalize().into();
        let (words, _) = digest.as_chunks::<8>();
        MemberId(u64::from_le_bytes(words[0]))
    }
}

impl SessionKey {
    /// The key of a session.
    pub fn of(namespace: &NamespaceId, session: &SessionId) -> SessionKey {
        SessionKey(short(b"session", namespace, session.as_str().as_bytes()))
    }
}

impl PrefixKey {
    /// The key of the prefix that ends with a page.
    pub fn of(namespace: &NamespaceId, last: &BlockHash) -> PrefixKey {
        PrefixKey(short(b"prefix", namespace, &last.0))
    }
}

impl Tip {
    /// Whether this one is believed rather than the other: the later turn, then the one it moved to, then the longer one, then the later
    /// life. What holds of any two holds everywhere, in whichever order they are heard.
    pub fn beats(&self, other: &Tip) -> bool {
        let rank = |tip: &Tip| (tip.turn, tip.moves, tip.pages, tip.home.incarnation, tip.home.member);
        rank(self) > rank(other)
    }
}

fn short(kind: &[u8], namespace: &NamespaceId, rest: &[u8]) -> [u8; 16] {
    let digest: [u8; 32] =
        Sha256::new().chain_update(kind).chain_update(namespace.0).chain_update(rest).finalize().into();
    let (words, _) = digest.as_chunks::<16>();
    words[0]
}
