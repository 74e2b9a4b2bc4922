//! Pins that another member is to have too. Owns: which member is asked, and in which order. Must not know: how pages
//! travel, what that member does.
//!
//! ```text
//!   pinned here --holders in rank--> one pulls and pins it --> its name is told, and remembered until the pin ends
//!                  \--no room, no answer--> the next --none is left--> why is told; whoever pins it again tries again
//! ```

use super::Engine;
use super::pin::PinHere;
use super::placed_pins::{Noted, PlacedPin};
use crate::cluster::{Cluster, PrefixHold};
use crate::limits::{SECOND_PIN_WAIT, SECOND_PINS_PLACED_MAX};
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId};

impl Engine {
    /// Has another member hold what is pinned here, as long. Returns its name. It goes on when nobody waits for it any more.
    ///
    /// # Errors
    /// Why there is no second copy, or none yet.
    pub(crate) async fn pin_elsewhere(
        self: &Arc<Self>,
        namespace: NamespaceId,
        here: &PinHere,
    ) -> Result<String, String> {
        let Some(cluster) = self.cluster().cloned() else {
            return Err("this server is in no cluster: it has no [cluster]".to_owned());
        };
        let last = here.last.map_err(|why| why.to_string())?;
        let Some(spec) = self.specs.find(&namespace) else {
            return Err("its namespace is being retired".to_owned());
        };
        let Some(turn) = self.placed_pins.turn() else {
            return Err(format!("{SECOND_PINS_PLACED_MAX} pins wait for their second copy already"));
        };
        let (engine, pin, ttl_ms) = (Arc::clone(self), here.pinned.pin, here.pinned.ends_in_ms);
        let placing = tokio::spawn(async move {
            let placed = engine.place_pin(&cluster, (namespace, pin), spec, last, ttl_ms).await;
            drop(turn);
            placed
        });
        match tokio::time::timeout(SECOND_PIN_WAIT, placing).await {
            Ok(Ok(placed)) => placed,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it is still on its way to another member".to_owned()),
        }
    }

    async fn place_pin(
        &self,
        cluster: &Cluster,
        of: (NamespaceId, BlockHash),
        spec: CheckedSpec,
        last: BlockHash,
        ttl_ms: u64,
    ) -> Result<String, String> {
        let (hold, until) =
            (PrefixHold { spec, last, ttl_ms }, Instant::now() + Duration::from_millis(ttl_ms));
        let mut why = "there is no other member to hold it".to_owned();
        for at in cluster.holders(&of.0, &last) {
            // Before it is asked: an Unpin meanwhile tells it, too.
            let noted = self.placed_pins.note(of, PlacedPin { at, hold: hold.clone(), until });
            if noted.is_none() {
                tracing::debug!("too many second pins: this one ends there by its time");
            }
            match cluster.offer_prefix(at, &hold).await {
                Ok(_) if self.pin_ends_in(&of.0, &of.1).is_none() => {
                    let at = PlacedPin { at, hold, until };
                    self.end_copies(self.placed_pins.take(&of).into_iter().chain([at]).collect());
                    return Err("it was unpinned meanwhile".to_owned());
                }
                Ok(name) => {
                    self.end_copies(self.placed_pins.take_others(&of, at));
                    return Ok(name);
                }
                Err(refused) => {
                    if refused.is_sure && noted == Some(Noted::First) {
                        self.placed_pins.forget(&of, at);
                    }
                    why = refused.why;
                }
            }
        }
        tracing::info!(why, "a pin has no second copy");
        Err(why)
    }

    /// A pin is over: so are its copies, where they are known.
    pub(crate) fn unpin_elsewhere(&self, namespace: NamespaceId, pin: BlockHash) {
        self.end_copies(self.placed_pins.take(&(namespace, pin)));
    }

    /// Tells members to hold something no longer. Nobody waits for that, and one that cannot be told lets it end by its time.
    fn end_copies(&self, copies: Vec<PlacedPin>) {
        let Some(cluster) = self.cluster().cloned().filter(|_| !copies.is_empty()) else { return };
        let Some(turn) = self.placed_pins.turn() else {
            tracing::info!("too many second pins are on their way: the copies of one end by their time");
            return;
        };
        tokio::spawn(async move {
            for PlacedPin { at, hold, .. } in copies {
                if let Err(refused) = cluster.offer_prefix(at, &PrefixHold { ttl_ms: 0, ..hold }).await {
                    tracing::info!(why = refused.why, "the second copy of a pin ends by its time");
                }
            }
            drop(turn);
        });
    }
}
