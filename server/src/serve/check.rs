//! What a start would be refused for at once, whichever program it is of. Owns: looking at users, certificates, addresses, places
//! and memory before a server that runs is left. Must not know: who asks, what happens then.
//!
//! What is as it was is not looked at: this server has it.

use super::listeners::cannot_listen;
use super::places::{beside, callers, credentials, local_path};
use crate::config::{self, Settings};
use crate::engine::Engine;
use crate::limits::PLACE_SUFFIX;
use crate::report::misused;
use crate::tls::TlsCounters;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use turnkv_transfer::{Listens, ServingLock, in_use, who_listens};

/// Whether a program could take the place of one with the settings in force, given a configuration file. Blocking.
///
/// # Errors
/// It could not.
pub(super) fn check_start(config: Option<&Path>, in_force: &Settings) -> anyhow::Result<()> {
    // What this program makes nothing of may be for the next one, which has been asked for itself.
    let Ok(settings) = config::load(config) else { return Ok(()) };
    if settings.keep.dram != in_force.keep.dram {
        return Err(misused(
            "keep.dram is other than before in the file: the next program would find nothing",
            "set it as it was, or stop this server and start the other",
        ));
    }
    callers(&settings)?;
    credentials(&settings, &TlsCounters::new(settings.tls.is_exposed(settings.tcp)))?;
    check_addresses(&settings, in_force)?;
    Engine::check_start(&settings, in_force)
}

/// Whether new addresses can be listened at.
fn check_addresses(settings: &Settings, in_force: &Settings) -> anyhow::Result<()> {
    for (kind, address, before) in
        [("tcp", settings.tcp, in_force.tcp), ("metrics", settings.metrics, in_force.metrics)]
    {
        let Some(address) = address.filter(|_| address != before) else { continue };
        if [in_force.tcp, in_force.metrics].contains(&Some(address)) {
            continue; // this server leaves it
        }
        TcpListener::bind(address).map_err(|error| cannot_listen(error, &address, kind))?;
    }
    if settings.socket == in_force.socket {
        return Ok(());
    }
    let what = format!("listen is another path in the file than {}", in_force.socket.display());
    Err(misused(what, "leave it as it was, or stop this server and start the other"))
}

/// Takes the place at the sockets, where no server lives, before anything else is taken. It is this server's while that is held. None: it
/// is a server's whose sockets somebody removed, which nobody finds any more.
///
/// # Errors
/// A server is there, or the place cannot be looked at.
pub(super) fn take_place(settings: &Settings) -> anyhow::Result<Option<ServingLock>> {
    let refuse = |error| cannot_listen(error, &settings.socket.display(), "listen");
    let place = match ServingLock::take(&beside(&settings.socket, PLACE_SUFFIX)) {
        Ok(place) => Some(place),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => return Err(refuse(error)),
    };
    for path in [local_path(&settings.socket), settings.socket.clone()] {
        let there = who_listens(&path).map_err(refuse)?;
        if there == Listens::Somebody || (place.is_none() && there != Listens::Nobody) {
            return Err(cannot_listen(in_use(&path), &path.display(), "listen"));
        }
    }
    Ok(place)
}
