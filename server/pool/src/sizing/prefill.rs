//! How fast engines prefill, by namespace, from what they report. Owns: the running rate.
//! Must not know: turns, pages.

use crate::limits::PREFILL_WINDOW_TOKENS;
use crate::numbers::{Reader, Writer};

/// Tokens prefilled and the time it took; recent turns count more than old ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefill {
    tokens: u64,
    us: u64,
}

impl Prefill {
    /// So many tokens were prefilled in so many microseconds.
    pub(crate) fn add(&mut self, tokens: u64, us: u64) {
        self.tokens = self.tokens.saturating_add(tokens);
        self.us = self.us.saturating_add(us);
        while self.tokens > PREFILL_WINDOW_TOKENS {
            self.tokens /= 2;
            self.us /= 2;
        }
    }

    pub(crate) fn write(&self, into: &mut Writer) {
        into.u64(self.tokens);
        into.u64(self.us);
    }

    /// As it was written. None: it is not of this form.
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Prefill> {
        let (tokens, us) = (from.u64()?, from.u64()?);
        (tokens <= PREFILL_WINDOW_TOKENS).then_some(Prefill { tokens, us })
    }

    /// How long so many tokens would take; none: nobody said how fast it is.
    pub(crate) fn us_for(&self, tokens: u64) -> Option<u64> {
        let us = u128::from(tokens) * u128::from(self.us);
        (self.tokens > 0 && self.us > 0)
            .then(|| u64::try_from(us / u128::from(self.tokens)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
