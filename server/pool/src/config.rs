//! What an operator sets, checked. Owns: the pool's configuration. Must not know: where it came from.

use crate::limits::{
    LEASE_PAGES_MAX, NAMESPACES_MAX, PROTECTED_ALL_PERCENT, SLAB_BYTES_MAX, SLAB_BYTES_MIN, SLOT_ALIGN_BYTES,
};

/// The pool's sizes and bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Bytes of one slab: a multiple of 4 KiB.
    pub slab_bytes: u64,
    /// Slabs of the DRAM tier.
    pub slab_count: u32,
    /// Bytes of the NVMe tier; 0: there is none.
    pub nvme_bytes: u64,
    /// Which new pages are written to NVMe.
    pub nvme_admit: Admit,
    /// Bytes that may be written to NVMe in a day, rewrites included; 0: as many as there are. Durable pages
    /// and a drain are written even so, and count.
    pub nvme_bytes_per_day: u64,
    /// `maintain` demotes clean pages until so many percent of a namespace's slots are free.
    pub free_slots_percent: u8,
    /// Bounds of the tables.
    pub limits: Limits,
    /// Who is evicted first.
    pub policy: PolicyKind,
}

/// Bounds of the pool's tables and leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pages in the index, all tiers.
    pub pages_max: u32,
    /// Namespaces.
    pub namespaces_max: u16,
    /// Sessions; beyond it the one idle for longest is forgotten.
    pub sessions_max: u32,
    /// Pages of one session.
    pub session_pages_max: u32,
    /// Leases at one time, those in quarantine too; a client, a user and all have the same shares of them as
    /// of DRAM.
    pub leases_max: u32,
    /// Pages of one lease.
    pub lease_pages_max: u32,
    /// Slots one client may hold under leases, so that a wedged client cannot starve the others.
    pub client_slots_max: u32,
    /// The same as a share of the slots that a namespace could have if all slabs were its own.
    pub client_slots_percent: u8,
    /// Share of DRAM that the clients of one user may lease for writing, map, and leave in quarantine; not
    /// less than a client's.
    pub user_slots_percent: u8,
    /// Share of DRAM that all clients together may; not less than a user's.
    pub all_slots_percent: u8,
    /// Time to finish what a lease is for.
    pub lease_ms: u32,
    /// Time after that until a read lease's slots are free again.
    pub lease_grace_ms: u32,
    /// Idle time after which a session is forgotten, unless its owner said otherwise.
    pub session_ttl_ms: u64,
    /// Share of DRAM that one tenant's pins and protected sessions may weigh, percent; 0: nothing is
    /// protected.
    pub protected_percent: u8,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pages_max: 16 << 20,
            namespaces_max: 1024,
            sessions_max: 100_000,
            session_pages_max: 131_072,
            leases_max: 16_384,
            lease_pages_max: LEASE_PAGES_MAX,
            client_slots_max: 65_536,
            client_slots_percent: 50,
            user_slots_percent: 85,
            all_slots_percent: 95,
            lease_ms: 10_000,
            lease_grace_ms: 5_000,
            session_ttl_ms: 24 * 3600 * 1000,
            protected_percent: 25,
        }
    }
}

/// Which new pages are written to NVMe at once; the others are when they are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Admit {
    /// All.
    #[default]
    All,
    /// Those of sessions that came back, or that are expected.
    Reused,
}

/// Which eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Least recently used, tails before heads.
    Lru,
    /// A queue of newcomers before the main one.
    S3Fifo,
    /// Newcomers must be read more often than what they replace.
    TinyLfu,
    /// Read once and read again share the room as their ghosts say.
    Arc,
    /// Learned chances of return by uses and age.
    Gittins,
    /// Learned chances of return by session, and what its owner said.
    #[default]
    Session,
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Slab size out of bounds or not aligned.
    #[error(
        "slab_bytes must be a multiple of {SLOT_ALIGN_BYTES} from {SLAB_BYTES_MIN} to {SLAB_BYTES_MAX}, got {0}"
    )]
    SlabBytes(u64),
    /// No slabs, or more than slot numbers reach.
    #[error("slab_count must be at least 1 and slab_count * slab_bytes at most 16 TiB, got {0} slabs")]
    SlabCount(u32),
    /// A percentage above 90.
    #[error("free_slots_percent must be at most 90, got {0}")]
    FreeSlots(u8),
    /// A limit of 0, or beyond what its counter holds.
    #[error("the limit {0} must be at least 1 and within its counter")]
    Limit(&'static str),
}

impl PoolConfig {
    /// Checks sizes and bounds.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let fits = (SLAB_BYTES_MIN..=SLAB_BYTES_MAX).contains(&self.slab_bytes);
        if !fits || !self.slab_bytes.is_multiple_of(SLOT_ALIGN_BYTES) {
            return Err(ConfigError::SlabBytes(self.slab_bytes));
        }
        let slots = u64::from(self.slab_count).checked_mul(self.slab_bytes / SLOT_ALIGN_BYTES);
        if self.slab_count == 0 || slots.is_none_or(|slots| slots >= u64::from(u32::MAX)) {
            return Err(ConfigError::SlabCount(self.slab_count));
        }
        if self.free_slots_percent > 90 {
            return Err(ConfigError::FreeSlots(self.free_slots_percent));
        }
        self.limits.check()
    }
}

impl Limits {
    fn check(&self) -> Result<(), ConfigError> {
        let counts = [
            ("pages_max", self.pages_max),
            ("namespaces_max", u32::from(self.namespaces_max)),
            ("sessions_max", self.sessions_max),
            ("session_pages_max", self.session_pages_max),
            ("leases_max", self.leases_max),
            ("lease_pages_max", self.lease_pages_max),
            ("client_slots_max", self.client_slots_max),
            ("lease_ms", self.lease_ms),
        ];
        match counts.iter().find(|(_, count)| *count == 0 || *count == u32::MAX) {
            Some((name, _)) => Err(ConfigError::Limit(name)),
            None if !(1..=100).contains(&self.client_slots_percent) => {
                Err(ConfigError::Limit("client_slots_percent"))
            }
            None if !(1..=100).contains(&self.user_slots_percent) => {
                Err(ConfigError::Limit("user_slots_percent"))
            }
            None if !(1..=100).contains(&self.all_slots_percent) => {
                Err(ConfigError::Limit("all_slots_percent"))
            }
            None if self.protected_percent > PROTECTED_ALL_PERCENT => {
                Err(ConfigError::Limit("protected_percent"))
            }
            None if self.namespaces_max > NAMESPACES_MAX => Err(ConfigError::Limit("namespaces_max")),
            None if self.session_ttl_ms == 0 => Err(ConfigError::Limit("session_ttl_ms")),
            None => Ok(()),
        }
    }
}
