//! Whether a member is there, as it finds out itself. Owns: rounds with and without its peers. Must not know: how they are
//! reached.

use crate::limits::{AWAY_AFTER_ROUNDS, BACK_AFTER_ROUNDS};

/// Away after some bad rounds in a row, back after more good ones: a link that flaps changes nothing twice a minute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hysteresis {
    away: bool,
    against: u32,
}

impl Hysteresis {
    /// Notes a round. Returns whether the member is away.
    pub fn note(&mut self, reached: bool) -> bool {
        // What speaks against how it stands.
        self.against = if reached == self.away { self.against + 1 } else { 0 };
        let enough = if self.away { BACK_AFTER_ROUNDS } else { AWAY_AFTER_ROUNDS };
        if self.against >= enough {
            *self = Hysteresis { away: !self.away, against: 0 };
        }
        self.away
    }
}
