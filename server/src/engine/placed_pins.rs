//! Where second copies of pins are. Owns: how many are remembered, and on their way. Must not know: how one is placed.

use crate::cluster::PrefixHold;
use crate::limits::{SECOND_PINS_MAX, SECOND_PINS_PLACED_MAX};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnkv_cluster::MemberId;
use turnkv_proto::{BlockHash, NamespaceId};

/// Second copies by their pins.
pub(super) struct PlacedPins {
    placed: Mutex<HashMap<(NamespaceId, BlockHash), PlacedPin>>,
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

    /// False: too many are remembered.
    pub(super) fn note(&self, of: (NamespaceId, BlockHash), placed: PlacedPin) -> bool {
        let mut all = self.placed.lock();
        if all.len() >= SECOND_PINS_MAX {
            let now = Instant::now();
            all.retain(|_, placed| placed.until > now);
        }
        let has_room = all.len() < SECOND_PINS_MAX || all.contains_key(&of);
        if has_room {
            all.insert(of, placed);
        }
        has_room
    }

    /// Where the second copy of a pin is, for the last time.
    pub(super) fn take(&self, of: &(NamespaceId, BlockHash)) -> Option<PlacedPin> {
        self.placed.lock().remove(of)
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
        let placed = |until| PlacedPin {
            at: MemberId(1),
            hold: PrefixHold { spec: spec.clone(), last: of(0).1, ttl_ms: 1 },
            until,
        };
        let (soon, late) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        assert!(pins.note(of(0), placed(soon)));
        assert!((1..SECOND_PINS_MAX).all(|at| pins.note(of(at), placed(late))));
        assert!(pins.note(of(SECOND_PINS_MAX), placed(late)), "the first one has ended");
        assert!(!pins.note(of(SECOND_PINS_MAX + 1), placed(late)) && pins.note(of(5), placed(late)));
        assert!(pins.take(&of(0)).is_none() && pins.take(&of(5)).is_some());
        let turns: Vec<_> = (0..SECOND_PINS_PLACED_MAX).map(|_| pins.turn()).collect();
        assert!(turns.iter().all(Option::is_some) && pins.turn().is_none());
    }
}
