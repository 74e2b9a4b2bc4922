//! Who keeps page memory and listening sockets for the next process, as it is configured. Owns: the choice, and that whoever is not to
//! keep them has nothing of before either. Must not know: how they are kept.

use super::places::beside;
use crate::config::{KeepDram, Settings};
use crate::engine::Engine;
use crate::keep::custody::{Custody, Keeps, Kept};
use crate::keep::held::HeldDescriptors;
use crate::keep::link::Keeper;
use crate::keep::store::DescriptorStore;
use crate::limits::KEEP_SOCKET_SUFFIX;
use crate::manager::{SOCKET_VARIABLE, ServiceManager};
use crate::report::misused;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Asked when memory is about to be taken: what was kept, and who keeps on.
pub(super) fn kept_by(
    settings: &Settings,
    held: &HeldDescriptors,
) -> anyhow::Result<impl FnOnce(&Settings) -> Option<Kept> + use<>> {
    let (manager, held) = (ServiceManager::of_environment(), held.clone());
    if settings.keep.dram == KeepDram::Systemd && manager.is_none() {
        let what =
            format!("keep.dram is \"systemd\", and no systemd is there ({SOCKET_VARIABLE} names no socket)");
        let todo = "start it as a unit like deploy/turnkv.service, or set keep.dram = \"auto\"";
        return Err(misused(what, todo));
    }
    Ok(move |settings: &Settings| {
        let keeper = (beside(&settings.socket, KEEP_SOCKET_SUFFIX), settings.keep.without_server);
        let by: Box<dyn Keeps> = match (settings.keep.dram, manager) {
            (KeepDram::Systemd, Some(manager)) => {
                empty_keeper(keeper);
                Box::new(DescriptorStore::new(manager, held))
            }
            (KeepDram::Auto, manager) => {
                empty_store(manager, held);
                Box::new(Keeper::new(keeper.0, keeper.1))
            }
            (_, manager) => {
                empty_keeper(keeper);
                empty_store(manager, held);
                return None;
            }
        };
        let custody = Custody::new(by);
        let descriptors = custody.find().unwrap_or_else(|error| {
            tracing::warn!(%error, "DRAM begins cold, and nobody keeps it for the next start yet: tried again (keep.dram = \"off\" to not try)");
            BTreeMap::new()
        });
        Some(Kept { custody, descriptors })
    })
}

/// Of a server before, which had another one keep.
fn empty_keeper((path, without_server): (PathBuf, Duration)) {
    if let Err(error) = Keeper::empty(path, without_server) {
        tracing::warn!(%error, "what was kept of the server before stays until its keeper lets go of it");
    }
}

fn empty_store(manager: Option<ServiceManager>, held: HeldDescriptors) {
    if let Err(error) = DescriptorStore::empty(manager, held) {
        tracing::warn!(%error, "what systemd kept of the server before stays until the unit is stopped");
    }
}

/// A private pool's memory is kept over its server's crash, and not over its end: whoever used it is gone.
pub(super) fn free_kept(engine: &Engine) {
    let Some(custody) = engine.custody() else { return };
    let freed = custody.names().iter().try_for_each(|name| custody.drop_kept(name));
    if let Err(error) = freed {
        tracing::warn!(%error, "memory stays taken until its keeper ends");
    }
}
