//! Second copies of what another member has pinned. Owns: that they are here whole before they are pinned, or not pinned. Must not know:
//! how pages travel, who else could have them.

use super::Engine;
use super::afar::Pull;
use super::lookup::PagesOf;
use super::pin::{Pin, Unpin};
use crate::cluster::{MemberCard, PrefixHold};
use crate::limits::{TAKE_LOOK, TAKE_WAIT};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::spawn_blocking;
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId};

impl Engine {
    /// Pulls a prefix from a member that has pinned it, and pins it for as long; or ends that pin. Bounded in time.
    ///
    /// # Errors
    /// Why it is not held.
    pub(crate) async fn hold_prefix(
        self: &Arc<Self>,
        hold: PrefixHold,
        from: Arc<MemberCard>,
    ) -> Result<(), Error> {
        let (namespace, last) = (hold.spec.id(), hold.last);
        if hold.ttl_ms == 0 {
            let engine = Arc::clone(self);
            let ended = spawn_blocking(move || engine.unpin(&Unpin { namespace, pin: last })).await;
            return ended.map_err(ended_early)?.map(drop);
        }
        if self.is_draining() {
            return Err(Error::new(ErrorKind::Draining, "it is drained itself"));
        }
        let engine = Arc::clone(self);
        let opened = spawn_blocking(move || engine.open_namespace(&hold.spec)).await;
        opened.map_err(ended_early)??;
        let hashes = self.bring_prefix(&namespace, &last, from).await?;
        let (engine, pages) = (Arc::clone(self), hashes.len());
        // Who pinned it here for longer keeps that.
        let before = self.pin_ends_in(&namespace, &last);
        let ttl_ms = hold.ttl_ms.max(before.unwrap_or(0));
        let pin = Pin { namespace, prefix: PagesOf::Hashes(hashes), pages: None, ttl_ms, second: false };
        let done = spawn_blocking(move || {
            let here = engine.pin(&pin)?.pinned;
            if here.pages as usize == pages {
                return Ok(());
            }
            match before {
                _ if here.pages == 0 => {}
                // The one that was here before holds what it can, as it did, and until it would have ended.
                Some(ttl_ms) if ttl_ms > 0 => {
                    engine.pin(&Pin { ttl_ms, ..pin })?;
                }
                _ => {
                    engine.unpin(&Unpin { namespace, pin: here.pin })?;
                }
            }
            Err(no_room(format!(
                "{} of its {pages} pages could be pinned: the tenant's budget ends",
                here.pages
            )))
        });
        done.await.map_err(ended_early)?
    }

    /// The pages that end with this one, all of them here.
    async fn bring_prefix(
        &self,
        namespace: &NamespaceId,
        last: &BlockHash,
        from: Arc<MemberCard>,
    ) -> Result<Vec<BlockHash>, Error> {
        let (ns, name) = (self.find_namespace(namespace)?, from.name.clone());
        let Some(cluster) = self.cluster() else { return Err(Error::invalid("it is in no cluster")) };
        let named = cluster.name_prefix(from.member.id, namespace, last).await;
        let hashes = named.map_err(|_| no_room(format!("it does not reach {name}")))?;
        if hashes.is_empty() {
            return Err(no_room(format!("{name} does not have it, or it has too many pages")));
        }
        // It is to stay: no copy that may go first.
        let pull = Pull { expected: true, ..Pull::new(*namespace, hashes.clone(), from) };
        if self.pull(pull).is_none() {
            return Err(no_room("too many pulls wait".to_owned()));
        }
        let until = Instant::now() + TAKE_WAIT;
        loop {
            let (found, coming) = self.look_with_coming(ns, namespace, &hashes)?;
            match (found.present as usize, coming) {
                (here, _) if here == hashes.len() => return Ok(hashes),
                (here, 0) => return Err(no_room(format!("{here} of its {} pages came", hashes.len()))),
                _ if Instant::now() > until => {
                    return Err(no_room("its pages did not come in time".to_owned()));
                }
                _ => tokio::time::sleep(TAKE_LOOK).await,
            }
        }
    }
}

fn no_room(why: String) -> Error {
    Error::new(ErrorKind::Limit, why)
}

fn ended_early(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}
