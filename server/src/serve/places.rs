//! Where the sockets of a server are, and who comes to them, as it is configured. Owns: these. Must not know: when they are opened.

use crate::access::{Callers, HostUser, UserTable};
use crate::config::{Settings, Tls};
use crate::report::failed;
use crate::tls::{Credentials, Protocol, TlsCounters};
use rustix::process::{getegid, geteuid};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use turnkv_proto::limits::LOCAL_SOCKET_SUFFIX;

/// What `[tls]` names.
pub(super) fn credentials(
    settings: &Settings,
    counters: &Arc<TlsCounters>,
) -> anyhow::Result<Option<Arc<Credentials>>> {
    let Tls::Files(files) = &settings.tls else { return Ok(None) };
    let credentials = Credentials::open(files.clone(), Protocol::OFFERED, Arc::clone(counters));
    credentials.map(Some).map_err(|error| {
        let todo = "correct the files of [tls]; `turnkv certs` makes some to try with";
        failed(error, "cannot speak TLS".to_owned(), todo.to_owned())
    })
}

/// Who the callers of this host are, as `[access]` says.
pub(super) fn callers(settings: &Settings) -> anyhow::Result<Arc<Callers>> {
    let access = &settings.access;
    let server = HostUser { user: geteuid().as_raw(), groups: vec![getegid().as_raw()] };
    let users = UserTable::new(&access.users, &access.groups, access.others.clone(), &server);
    let users = users.map_err(|error| {
        let todo = "name users and groups that this host has, or write their numbers";
        failed(error, "cannot tell the users of [access]".to_owned(), todo.to_owned())
    })?;
    Ok(Callers::new(users, access.plain.clone()))
}

/// Where the local socket is, given gRPC's.
pub(super) fn local_path(socket: &Path) -> PathBuf {
    beside(socket, LOCAL_SOCKET_SUFFIX)
}

pub(super) fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}
