//! What was learned, for the next process: weights of the policy, miss-ratio curves, how fast engines prefill. Owns: what is written
//! together, and that of what is read all counts or nothing. Must not know: where it is kept, sampling, chances.
//!
//! | of | is written |
//! |---|---|
//! | the pool | format, policy, what the policy learned of all namespaces |
//! | a namespace | format, policy, what the policy learned of it alone, prefill, curve |

use crate::Pool;
use crate::config::PolicyKind;
use crate::error::PoolError;
use crate::eviction::policy::build;
use crate::ids::{NamespaceIndex, Now};
use crate::numbers::{Reader, Writer};
use crate::sizing::curve::{Curve, CurveTuning};
use crate::sizing::prefill::Prefill;

/// The form of it. Another one is never guessed at.
const FORMAT: u8 = 1;

impl Pool {
    /// What was learned of the pool (none), or of one namespace: it means something to [`Pool::learn_again`] alone.
    ///
    /// # Errors
    /// The namespace is not open.
    pub fn learned(&self, ns: Option<NamespaceIndex>) -> Result<Vec<u8>, PoolError> {
        let mut into = Writer::default();
        into.u8(FORMAT);
        into.u8(number(self.store.config().policy));
        self.store.policy().write_learned(ns.map(|ns| ns.0), &mut into);
        if let Some(ns) = ns {
            self.namespaces.prefill(ns).ok_or(PoolError::NamespaceUnknown)?.write(&mut into);
            self.curves.of(ns.0).write(&mut into);
        }
        Ok(into.bytes())
    }

    /// Goes on from what an earlier process had learned; before pages of the namespace are used. False: it is of another format or
    /// policy, or damaged; then learning begins anew.
    pub fn learn_again(&mut self, ns: Option<NamespaceIndex>, learned: &[u8], now: Now) -> bool {
        self.store.call.begin();
        let read = self.read_learned(ns, learned, now).is_some();
        if let (false, Some(ns)) = (read, ns) {
            self.store.policy_mut().namespace_gone(ns.0);
        }
        read
    }

    fn read_learned(&mut self, ns: Option<NamespaceIndex>, learned: &[u8], now: Now) -> Option<()> {
        let policy = self.store.config().policy;
        let mut from = Reader::new(learned);
        let fits = from.u8()? == FORMAT && from.u8()? == number(policy);
        fits.then_some(())?;
        if let Some(ns) = ns {
            self.namespaces.get(ns)?;
        }
        // Read to its end by nobody's policy and curve before anything counts.
        let (mut whole, place) = (from.clone(), ns.map(|ns| ns.0));
        build(policy).read_learned(place, &mut whole)?;
        if ns.is_some() {
            Prefill::read(&mut whole)?;
            Curve::new(CurveTuning::default()).read(&mut whole, now)?;
        }
        whole.is_empty().then_some(())?;
        self.store.policy_mut().read_learned(place, &mut from)?;
        if let Some(ns) = ns {
            *self.namespaces.prefill_mut(ns)? = Prefill::read(&mut from)?;
            self.curves.read(ns.0, &mut from, now)?;
        }
        Some(())
    }
}

fn number(policy: PolicyKind) -> u8 {
    match policy {
        PolicyKind::Lru => 0,
        PolicyKind::S3Fifo => 1,
        PolicyKind::TinyLfu => 2,
        PolicyKind::Arc => 3,
        PolicyKind::Gittins => 4,
        PolicyKind::Session => 5,
    }
}
