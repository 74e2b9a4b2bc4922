//! Configuration. Owns: what the operator wrote ([`File`]) and what was checked ([`Settings`]).
//! Must not know: the components that are built from it.

mod access;
mod again;
mod archive;
mod archived;
mod bounds;
mod bytes;
mod choices;
mod cluster;
mod dram;
mod error;
mod events;
mod keep;
mod listen;
mod nvme;
mod reach;
mod remote;
mod speaks;
mod text;
mod tls;
mod verify;

use crate::limits::{CONNECTIONS_MAX, CONNECTIONS_MIN, CONNECTIONS_USUAL};
pub(crate) use access::Access;
use access::AccessFile;
pub(crate) use again::load_again;
pub(crate) use archive::ArchiveConfig;
use archive::ArchiveFile;
pub(crate) use archived::{ArchivedSessions, SessionsConfig};
use bounds::{bad, inflight, within};
pub(crate) use bytes::Bytes;
use bytes::{GIB, MIB};
pub(crate) use choices::{NvmeAdmit, NvmeCodec, NvmeEngine, Policy};
use cluster::ClusterFile;
pub(crate) use cluster::{ClusterMembers, ClusterSettings, ListedMember, check_name};
use dram::DramFile;
pub(crate) use dram::{DRAM_BYTES_MIN, Dram};
pub(crate) use error::ConfigError;
use events::EventsFile;
pub(crate) use events::{EventsConfig, PageNames};
use keep::KeepFile;
pub(crate) use keep::{Keep, KeepDram};
use listen::check_listen;
pub(crate) use listen::default_socket;
pub(crate) use nvme::Nvme;
use nvme::NvmeFile;
pub(crate) use remote::Remote;
use remote::RemoteFile;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use text::read_text;
pub(crate) use tls::Tls;
use tls::TlsFile;
use turnkv_proto::limits::SHARD_BYTES_MAX;
pub(crate) use verify::Verify;

/// What the operator wrote: every key optional, unknown keys refused.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Unix socket of gRPC, `unix:/path`; the hot local socket is at the same path + `.local`.
    listen: Option<String>,
    /// TCP address of gRPC and frames, e.g. `0.0.0.0:7411`; none by default. Off the loopback it needs `[tls]`.
    tcp: Option<SocketAddr>,
    /// HTTP address of /metrics and /healthz; none by default.
    metrics: Option<SocketAddr>,
    /// Permission bits of both sockets, octal text; default `0600`.
    socket_mode: Option<String>,
    /// Who is evicted first: `session` (default), `gittins`, `lru`, `arc`, `s3fifo`, `tinylfu`.
    policy: Option<Policy>,
    /// Which bytes are checked against their checksum: `tiers` (default) or `always`.
    verify: Option<Verify>,
    dram: DramFile,
    nvme: Option<NvmeFile>,
    limits: LimitsFile,
    tls: Option<TlsFile>,
    access: AccessFile,
    remote: RemoteFile,
    archive: ArchiveFile,
    keep: KeepFile,
    cluster: Option<ClusterFile>,
    events: Option<EventsFile>,
}

/// `[limits]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsFile {
    /// How long a lease's owner may take, ms; default 10000, 100 to 600000.
    lease_ms: Option<u64>,
    /// How long after its deadline a read lease's slots stay, ms; default 2000, at least 100.
    lease_grace_ms: Option<u64>,
    /// Share of the slots that one client may lease, percent; default 50, 1 to 100.
    client_slots_percent: Option<u8>,
    /// Share that one user's clients may lease for writing, map and leave behind, percent; default 85, 1 to 100.
    user_slots_percent: Option<u8>,
    /// Share that all clients together may, percent; default 95, 1 to 100.
    all_slots_percent: Option<u8>,
    /// Slots kept free by demotion ahead of need, percent; default 2, 0 to 50.
    free_slots_percent: Option<u8>,
    /// Pages the index may hold; default: what the tiers can hold at 16 KiB a page, at most 64 Mi.
    pages_max: Option<u32>,
    /// Sessions remembered; default 100000.
    sessions_max: Option<u32>,
    /// Namespaces open; default 1024, at most 65000. At the limit the one that nobody used for longest makes way.
    namespaces_max: Option<u16>,
    /// Leases held at a time; default 4096.
    leases_max: Option<u32>,
    /// A session that is not heard of for so long is forgotten, ms; default 86400000 (a day).
    session_ttl_ms: Option<u64>,
    /// Share of DRAM that one tenant's pins and sessions with a priority may protect, percent; default 25, 0 to 50.
    protected_percent: Option<u8>,
    /// How long a drain may take to write what is dirty, ms; default 30000.
    drain_ms: Option<u64>,
    /// Connections at all doors together; default 4096, or what the limit of open files leaves room for.
    connections_max: Option<u32>,
    /// Bytes of pages that may be in flight to and from one client on another host; default `32MiB`, `4MiB` to `16GiB`.
    remote_client_inflight_bytes: Option<Bytes>,
    /// The same of all of these clients together; default `128MiB`.
    remote_inflight_bytes: Option<Bytes>,
    /// How long a durable commit waits for NVMe before it answers that its pages are not durable yet, ms; default 20000.
    durable_ms: Option<u64>,
}

/// What was checked; every field has its final value.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Path of the gRPC socket.
    pub(crate) socket: PathBuf,
    /// TCP address of gRPC.
    pub(crate) tcp: Option<SocketAddr>,
    /// HTTP address.
    pub(crate) metrics: Option<SocketAddr>,
    /// Permission bits of the sockets.
    pub(crate) socket_mode: u32,
    /// Who is evicted first.
    pub(crate) policy: Policy,
    /// Which bytes are checked against their checksum.
    pub(crate) verify: Verify,
    /// The DRAM tier.
    pub(crate) dram: Dram,
    /// The NVMe tier.
    pub(crate) nvme: Option<Nvme>,
    /// Bounds.
    pub(crate) limits: Limits,
    /// How TCP is protected.
    pub(crate) tls: Tls,
    /// Who may do what.
    pub(crate) access: Access,
    /// How pages go to and from other hosts.
    pub(crate) remote: Remote,
    /// Where snapshots are kept.
    pub(crate) archive: ArchiveConfig,
    /// Whether page memory outlives the process.
    pub(crate) keep: Keep,
    /// The other pools that share what they have; none: this one is alone.
    pub(crate) cluster: Option<ClusterSettings>,
    /// What routers are told of pages; none: nothing.
    pub(crate) events: Option<EventsConfig>,
}

/// Checked `[limits]`; see the file's keys for what each does.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "documented on LimitsFile, key by key")]
pub(crate) struct Limits {
    pub(crate) lease_ms: u64,
    pub(crate) lease_grace_ms: u64,
    pub(crate) client_slots_percent: u8,
    pub(crate) user_slots_percent: u8,
    pub(crate) all_slots_percent: u8,
    pub(crate) free_slots_percent: u8,
    pub(crate) pages_max: u32,
    pub(crate) sessions_max: u32,
    pub(crate) namespaces_max: u16,
    pub(crate) leases_max: u32,
    pub(crate) session_ttl_ms: u64,
    pub(crate) protected_percent: u8,
    pub(crate) drain_ms: u64,
    pub(crate) connections_max: Option<u32>,
    pub(crate) remote_client_inflight_bytes: u64,
    pub(crate) remote_inflight_bytes: u64,
    pub(crate) durable_ms: u64,
}

/// Reads and checks a file; without one, the defaults.
pub(crate) fn load(path: Option<&Path>) -> Result<Settings, ConfigError> {
    let Some(path) = path else { return check(File::default()) };
    parse(path, &read_text(path)?)
}

/// Checks the text of a file.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
    let file = toml::from_str(text).map_err(|error| ConfigError::parse(path, text, &error))?;
    check(file)
}

impl Settings {
    /// The file that says what is in force: what `turnkv config` prints, and what can be read back.
    pub(crate) fn as_file(&self) -> File {
        let limits = &self.limits;
        File {
            listen: Some(format!("unix:{}", self.socket.display())),
            tcp: self.tcp,
            metrics: self.metrics,
            socket_mode: Some(format!("{:04o}", self.socket_mode)),
            policy: Some(self.policy),
            verify: Some(self.verify),
            dram: DramFile {
                bytes: Some(Bytes(self.dram.bytes)),
                slab_bytes: Some(Bytes(self.dram.slab_bytes)),
                huge_pages: Some(self.dram.huge_pages),
                lock: Some(self.dram.lock),
                check_available: Some(self.dram.check_available),
            },
            nvme: self.nvme.as_ref().map(Nvme::as_file),
            limits: LimitsFile {
                lease_ms: Some(limits.lease_ms),
                lease_grace_ms: Some(limits.lease_grace_ms),
                client_slots_percent: Some(limits.client_slots_percent),
                user_slots_percent: Some(limits.user_slots_percent),
                all_slots_percent: Some(limits.all_slots_percent),
                free_slots_percent: Some(limits.free_slots_percent),
                pages_max: Some(limits.pages_max),
                sessions_max: Some(limits.sessions_max),
                namespaces_max: Some(limits.namespaces_max),
                leases_max: Some(limits.leases_max),
                session_ttl_ms: Some(limits.session_ttl_ms),
                protected_percent: Some(limits.protected_percent),
                drain_ms: Some(limits.drain_ms),
                connections_max: Some(limits.connections_max.unwrap_or(CONNECTIONS_USUAL)),
                remote_client_inflight_bytes: Some(Bytes(limits.remote_client_inflight_bytes)),
                remote_inflight_bytes: Some(Bytes(limits.remote_inflight_bytes)),
                durable_ms: Some(limits.durable_ms),
            },
            tls: self.tls.as_file(),
            access: self.access.as_file(),
            remote: self.remote.as_file(),
            archive: self.archive.as_file(),
            keep: self.keep.as_file(),
            cluster: self.cluster.as_ref().map(ClusterSettings::as_file),
            events: self.events.as_ref().map(EventsConfig::as_file),
        }
    }
}

impl Settings {
    /// What an operator should know of plain TCP that is open off the loopback; none: it is not.
    pub(crate) fn exposed(&self) -> Option<String> {
        let address = self.tcp.filter(|_| self.tls.is_exposed(self.tcp))?;
        let granted = &self.access.plain;
        Some(format!(
            "plain TCP is open at {address} (insecure = true): whoever reaches it is granted {granted}"
        ))
    }

    /// What an operator should know of the way that other members of a cluster take to this one; none: nothing.
    pub(crate) fn between(&self) -> Option<String> {
        self.cluster.as_ref()?.between(self.tcp)
    }

    /// The keys that have no value: what they turn on is off.
    pub(crate) fn unset(&self) -> Vec<&'static str> {
        let nvme = self.nvme.as_ref();
        let keys = [
            ("tcp", self.tcp.is_none()),
            ("metrics", self.metrics.is_none()),
            ("[nvme]", nvme.is_none()),
            ("nvme.write_bytes_per_day", nvme.is_some_and(|nvme| nvme.write_bytes_per_day == 0)),
            ("[tls]", matches!(self.tls, Tls::Loopback)),
            ("access.users", self.access.users.is_empty()),
            ("access.groups", self.access.groups.is_empty()),
            ("remote.nics", self.remote.nics.is_empty()),
            ("remote.libfabric_provider", self.remote.libfabric_provider.is_empty()),
        ];
        let cluster = self.cluster.as_ref().map_or_else(|| vec![("[cluster]", true)], ClusterSettings::unset);
        let events = self.events.as_ref().map_or_else(|| vec![("[events]", true)], EventsConfig::unset);
        let keys = keys.into_iter().chain(self.archive.unset()).chain(cluster).chain(events);
        keys.filter_map(|(key, unset)| unset.then_some(key)).collect()
    }
}

fn check(file: File) -> Result<Settings, ConfigError> {
    let dram = Dram::check(&file.dram)?;
    let nvme = file.nvme.map(Nvme::check).transpose()?;
    let limits = check_limits(&file.limits, dram.bytes, nvme.as_ref().map_or(0, |nvme| nvme.bytes))?;
    let mode = file.socket_mode.as_deref().unwrap_or("0600");
    let socket_mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
        bad("socket_mode", format!("`{mode}` is not octal permission bits such as \"0660\""))
    })?;
    let tls = Tls::check(file.tls, file.tcp)?;
    let access = Access::check(file.access, tls.is_exposed(file.tcp))?;
    let remote = Remote::check(file.remote, file.tcp)?;
    let archive = ArchiveConfig::check(file.archive)?;
    let keep = Keep::check(&file.keep)?;
    let cluster =
        file.cluster.map(|cluster| ClusterSettings::check(cluster, (file.tcp, &tls))).transpose()?;
    let events = file.events.map(EventsConfig::check).transpose()?;
    Ok(Settings {
        socket: check_listen(file.listen.as_deref())?,
        tcp: file.tcp,
        metrics: file.metrics,
        socket_mode,
        policy: file.policy.unwrap_or(Policy::Session),
        verify: file.verify.unwrap_or_default(),
        dram,
        nvme,
        limits,
        tls,
        access,
        remote,
        archive,
        keep,
        cluster,
        events,
    })
}

fn check_limits(file: &LimitsFile, dram: u64, nvme: u64) -> Result<Limits, ConfigError> {
    let pages_fit = ((dram + nvme) / (16 << 10)).clamp(1 << 12, 64 << 20);
    Ok(Limits {
        lease_ms: within("limits.lease_ms", file.lease_ms, 10_000, 100, 600_000)?,
        lease_grace_ms: within("limits.lease_grace_ms", file.lease_grace_ms, 2_000, 100, 600_000)?,
        client_slots_percent: within("limits.client_slots_percent", file.client_slots_percent, 50, 1, 100)?,
        user_slots_percent: within("limits.user_slots_percent", file.user_slots_percent, 85, 1, 100)?,
        all_slots_percent: within("limits.all_slots_percent", file.all_slots_percent, 95, 1, 100)?,
        free_slots_percent: within("limits.free_slots_percent", file.free_slots_percent, 2, 0, 50)?,
        pages_max: within("limits.pages_max", file.pages_max, pages_fit as u32, 1 << 10, 1 << 30)?,
        sessions_max: within("limits.sessions_max", file.sessions_max, 100_000, 1, 100_000_000)?,
        namespaces_max: within(
            "limits.namespaces_max",
            file.namespaces_max,
            1_024,
            1,
            turnkv_pool::limits::NAMESPACES_MAX,
        )?,
        leases_max: within("limits.leases_max", file.leases_max, 4_096, 1, 1 << 20)?,
        session_ttl_ms: within(
            "limits.session_ttl_ms",
            file.session_ttl_ms,
            86_400_000,
            1_000,
            u64::MAX / 4,
        )?,
        protected_percent: within("limits.protected_percent", file.protected_percent, 25, 0, 50)?,
        durable_ms: within("limits.durable_ms", file.durable_ms, 20_000, 10, 600_000)?,
        drain_ms: within("limits.drain_ms", file.drain_ms, 30_000, 0, 3_600_000)?,
        remote_client_inflight_bytes: inflight(
            "limits.remote_client_inflight_bytes",
            file.remote_client_inflight_bytes,
            32 * MIB,
        )?,
        remote_inflight_bytes: inflight(
            "limits.remote_inflight_bytes",
            file.remote_inflight_bytes,
            128 * MIB,
        )?,
        connections_max: match file.connections_max {
            None => None,
            max => Some(within("limits.connections_max", max, 0, CONNECTIONS_MIN as u32, CONNECTIONS_MAX)?),
        },
    })
}

const _: () = assert!(SHARD_BYTES_MAX <= GIB, "every legal shard fits the largest slab");

#[cfg(test)]
mod tests;
