//! Where second copies of pins are. Owns: how many are remembered, and on their way. Must not know: how one is placed.

use crate::cluster::PrefixHold;
use crate::limits::{SECOND_PINS_MAX, SECOND_PINS_PLACED_MAX, TAKERS_MAX};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnkv_cluster::MemberId;
use turnkv_proto::{BlockHash, NamespaceId};

/// Members that are remembered of one pin: the ones in rank, before and after the members changed.
const COPIES_MAX: usize = 2 * TAKERS_MAX;

/// Second copies by their pins.
pub(super) struct PlacedPins {
    /// A pin that hopped may have several for a moment, each at another member.
    placed: Mutex<HashMap<(NamespaceId, BlockHash), Vec<PlacedPin>>>,
    /// Turns to place one: a member may take long to pull it.
    turns: Arc<Semaphore>,
}

/// A second copy.
pub(super) struct PlacedPin {
    /// Who has it.
    pub(super) at: MemberId,
    /// What was asked of that member.
    pub(super) hold: PrefixHold,
    /// When it ends there by itself.
    pub(super) until: Instant,
}

/// Whether a member was asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    First,
    Again,
}

impl Default for PlacedPins {
    fn default() -> PlacedPins {
        PlacedPins { placed: Mutex::default(), turns: Arc::new(Semaphore::new(SECOND_PINS_PLACED_MAX)) }
    }
}

impl PlacedPins {
    /// A turn to place one, as long as it is kept; none: too many are on their way.
    pub(super) fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turns).try_acquire_owned().ok()
    }

    /// A member is asked to hold one, for the first time as far as is known, or again; none: too many are remembered.
    pub(super) fn note(&self, of: (NamespaceId, BlockHash), placed: PlacedPin) -> Option<Noted> {
        let mut all = self.placed.lock();
        if all.len() >= SECOND_PINS_MAX {
            let now = Instant::now();
            all.retain(|_, placed| placed.iter().any(|placed| placed.until > now));
        }
        if all.len() >= SECOND_PINS_MAX && !all.contains_key(&of) {
            return None;
        }
        let copies = all.entry(of).or_default();
        let before = copies.len();
        copies.retain(|copy| copy.at != placed.at);
        let noted = if copies.len() < before { Noted::Again } else { Noted::First };
        if copies.len() >= COPIES_MAX {
            copies.remove(0);
        }
        copies.push(placed);
        Some(noted)
    }

    /// A member does not hold one.
    pub(super) fn forget(&self, of: &(NamespaceId, BlockHash), at: MemberId) {
        let mut all = self.placed.lock();
        if let Some(copies) = all.get_mut(of) {
            copies.retain(|copy| copy.at != at);
            if copies.is_empty() {
                all.remove(of);
            }
        }
    }

    /// Where else than at this member there may be copies of a pin, for the last time.
    pub(super) fn take_others(&self, of: &(NamespaceId, BlockHash), at: MemberId) -> Vec<PlacedPin> {
        let mut all = self.placed.lock();
        all.get_mut(of).map_or(Vec::new(), |copies| copies.extract_if(.., |copy| copy.at != at).collect())
    }

    /// Where copies of a pin may be, for the last time.
    pub(super) fn take(&self, of: &(NamespaceId, BlockHash)) -> Vec<PlacedPin> {
        self.placed.lock().remove(of).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use turnkv_proto::Spec;

    #[test]
    fn places_are_bounded_and_those_that_ended_make_way() {
        let pins = PlacedPins::default();
        let of = |at: usize| (NamespaceId([1; 32]), BlockHash::chain(None, &[at as u32]));
        let spec = Spec::opaque("m", 16, 4096).check().unwrap();
        let placed_at = |at, until| PlacedPin {
            at: MemberId(at),
            hold: PrefixHold { spec: spec.clone(), last: of(0).1, ttl_ms: 1 },
            until,
        };
        let placed = |until| placed_at(1, until);
        let (soon, late) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        assert_eq!(pins.note(of(0), placed(soon)), Some(Noted::First));
        assert!((1..SECOND_PINS_MAX).all(|at| pins.note(of(at), placed(late)).is_some()));
        assert!(pins.note(of(SECOND_PINS_MAX), placed(late)).is_some(), "the first one has ended");
        assert!(pins.note(of(SECOND_PINS_MAX + 1), placed(late)).is_none());
        assert_eq!(pins.note(of(5), placed(late)), Some(Noted::Again));
        // One pin does not fill the memory of all.
        assert!((2..100).all(|at| pins.note(of(5), placed_at(at, late)) == Some(Noted::First)));
        pins.forget(&of(5), MemberId(98));
        let others = pins.take_others(&of(5), MemberId(99));
        assert_eq!(others.len(), COPIES_MAX - 2);
        assert!(pins.take(&of(0)).is_empty());
        let left: Vec<u64> = pins.take(&of(5)).iter().map(|copy| copy.at.0).collect();
        assert_eq!((left, pins.take(&of(5)).len()), (vec![99], 0));
        let turns: Vec<_> = (0..SECOND_PINS_PLACED_MAX).map(|_| pins.turn()).collect();
        assert!(turns.iter().all(Option::is_some) && pins.turn().is_none());
    }
}
