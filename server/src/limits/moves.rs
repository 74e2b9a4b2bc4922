//! The bounds of sessions that go to other members, because this host is emptied. Owns: constants. Must not know: what keeps them.

use super::PEER_NAME_MAX;
use std::time::Duration;

/// Sessions that are offered at a time.
pub(crate) const MOVES_MAX: usize = 4;
/// Sessions that one pass offers; those beyond come in the next one.
pub(crate) const MOVE_SESSIONS_MAX: usize = 1 << 16;
/// Of these, how many are looked at under one hold of the pool's lock.
pub(crate) const MOVE_WORTH_PER_LOCK: usize = 256;
/// Bytes of pages that leave in a second, unless another pace is asked for: a fifth of a 40 Gb/s link.
pub(crate) const MOVE_BYTES_PER_S_USUAL: u64 = 1 << 30;
/// From when a host is to be emptied until its first session leaves: others know by then that nothing new is placed there.
pub(crate) const MOVES_SETTLE: Duration = Duration::from_secs(2);
/// Between two passes.
pub(crate) const MOVE_PAUSE: Duration = Duration::from_millis(200);
/// How often the gauges of moves are brought up to date.
pub(crate) const MOVE_LOOK: Duration = Duration::from_millis(500);
/// Members that one session is offered to in a pass.
pub(crate) const TAKERS_MAX: usize = 4;
/// How long whoever takes a session waits for its pages.
pub(crate) const TAKE_WAIT: Duration = Duration::from_secs(60);
/// How often it looks whether they are there.
pub(crate) const TAKE_LOOK: Duration = Duration::from_millis(5);
/// Sessions that are being taken over at a time; one more is refused as one that there is no room for.
pub(crate) const TAKES_MAX: usize = 32;
/// How long an offer waits for its answer.
pub(crate) const OFFER_WAIT: Duration = Duration::from_secs(65);
/// How long a Pin that wants a second copy waits for it; beyond that it goes on without its caller.
pub(crate) const SECOND_PIN_WAIT: Duration = Duration::from_secs(5);
/// Pins whose second copies are on their way at a time; one more has none.
pub(crate) const SECOND_PINS_PLACED_MAX: usize = 32;
/// Second copies of which this member remembers where they are; those beyond it end by their time.
pub(crate) const SECOND_PINS_MAX: usize = 4096;

const _: () = assert!(
    OFFER_WAIT.as_millis() > TAKE_WAIT.as_millis() + PEER_NAME_MAX.as_millis(),
    "whoever takes a session answers before nobody waits for that"
);
