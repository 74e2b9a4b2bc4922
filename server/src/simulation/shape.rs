//! How large a simulated server is. Owns: the step from a shape to settings. Must not know: what is simulated with it.

use crate::config::{
    Access, ArchiveConfig, Dram, Keep, Limits, Nvme, NvmeAdmit, NvmeCodec, NvmeEngine, Policy, Remote,
    Settings, Tls, Verify,
};
use crate::limits::REMOTE_INFLIGHT_BYTES_MIN;
use std::path::PathBuf;

/// The settings that a simulation chooses, below what configuration files allow: small servers meet their bounds soon.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each is the setting of the same name")]
pub struct Shape {
    pub dram_bytes: u64,
    pub slab_bytes: u64,
    /// 0: no NVMe tier.
    pub nvme_bytes: u64,
    pub segment_bytes: u64,
    pub inflight_bytes: u64,
    /// 0: `none`, 1: `codebook`, 2: `huffman`, else `zstd`. What `auto` measures, no seed replays.
    pub codec: u8,
    /// Operations that the NVMe tier takes at a time: no setting, but what a busy device comes to.
    pub queue_ops: usize,
    /// Only pages of sessions that came back are written at once.
    pub admit_reused: bool,
    /// 0: no bound.
    pub write_bytes_per_day: u64,
    pub lease_ms: u64,
    pub lease_grace_ms: u64,
    pub client_slots_percent: u8,
    pub pages_max: u32,
    pub sessions_max: u32,
    pub namespaces_max: u16,
    pub leases_max: u32,
    pub session_ttl_ms: u64,
    /// 0: `session`, 1: `lru`, 2: `s3fifo`, 3: `tinylfu`, 4: `arc`, else `gittins`.
    pub policy: u8,
}

impl Shape {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            socket: PathBuf::new(),
            tcp: None,
            metrics: None,
            socket_mode: 0o600,
            tls: Tls::Loopback,
            access: Access::default(),
            remote: Remote::default(),
            archive: ArchiveConfig::default(),
            keep: Keep::nobody(),
            cluster: None,
            events: None,
            verify: Verify::Tiers,
            policy: match self.policy {
                0 => Policy::Session,
                1 => Policy::Lru,
                2 => Policy::S3fifo,
                3 => Policy::Tinylfu,
                4 => Policy::Arc,
                _ => Policy::Gittins,
            },
            dram: Dram {
                bytes: self.dram_bytes,
                slab_bytes: self.slab_bytes,
                any_slab_bytes: false,
                huge_pages: false,
                lock: false,
                check_available: true,
            },
            nvme: (self.nvme_bytes > 0).then(|| Nvme {
                path: PathBuf::new(),
                bytes: self.nvme_bytes,
                segment_bytes: self.segment_bytes,
                engine: NvmeEngine::Blocking,
                codec: match self.codec {
                    0 => NvmeCodec::None,
                    1 => NvmeCodec::Codebook,
                    2 => NvmeCodec::Huffman,
                    _ => NvmeCodec::Zstd,
                },
                inflight_bytes: self.inflight_bytes,
                state_dir: PathBuf::new(),
                admit: if self.admit_reused { NvmeAdmit::Reused } else { NvmeAdmit::All },
                write_bytes_per_day: self.write_bytes_per_day,
            }),
            limits: Limits {
                lease_ms: self.lease_ms,
                lease_grace_ms: self.lease_grace_ms,
                client_slots_percent: self.client_slots_percent,
                user_slots_percent: 85,
                all_slots_percent: 95,
                free_slots_percent: 2,
                pages_max: self.pages_max,
                sessions_max: self.sessions_max,
                namespaces_max: self.namespaces_max,
                leases_max: self.leases_max,
                session_ttl_ms: self.session_ttl_ms,
                protected_percent: 25,
                drain_ms: 5_000,
                connections_max: None,
                durable_ms: 20_000,
                remote_client_inflight_bytes: REMOTE_INFLIGHT_BYTES_MIN,
                remote_inflight_bytes: REMOTE_INFLIGHT_BYTES_MIN,
            },
        }
    }
}
