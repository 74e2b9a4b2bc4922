//! How many connections each door takes. Owns: the arithmetic from the process' limit of open files, and that limit's
//! raise. Must not know: who is connected.

use super::door::Door;
use crate::config::Settings;
use crate::limits::{
    CONNECTIONS_MIN, CONNECTIONS_USUAL, FRAMED_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX, LOCAL_CONNECTIONS_MAX,
    LOCAL_CONNECTIONS_PER_UNREAD_SLAB, PEER_PERCENT_MAX, PROCESS_DESCRIPTORS_RESERVED,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The cap of each door; they add up to the process' cap, so no door can take what another one has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caps {
    by_door: [usize; Door::ALL.len()],
}

/// The limit of open files leaves too little room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {allowed} files, and {reserved} of them are the tiers' and its own: too few are left for connections"
)]
pub(crate) struct TooFew {
    allowed: u64,
    reserved: u64,
}

impl TooFew {
    /// What to do about it.
    pub(crate) fn advice(&self) -> String {
        let least = self.reserved + descriptors(CONNECTIONS_MIN);
        format!(
            "raise the limit of open files to {least} at least (LimitNOFILE= of the service, or `ulimit -n`), or make the tiers smaller"
        )
    }
}

impl Caps {
    /// What the settings ask for, as far as the limit of open files allows it beside `tiers`, what the tiers need.
    pub(crate) fn of_settings(settings: &Settings, tiers: u64) -> Result<Caps, TooFew> {
        let caps = plan(settings, tiers, raise_open_files())?;
        let wanted = settings.limits.connections_max.unwrap_or(CONNECTIONS_USUAL);
        if caps.total() < wanted as usize {
            tracing::warn!(
                wanted,
                taken = caps.total(),
                "fewer connections than limits.connections_max: raise the limit of open files (LimitNOFILE=, ulimit -n)"
            );
        }
        Ok(caps)
    }

    /// Descriptors that neither connections, nor `tiers`, nor the rest of the process reckons with.
    pub(crate) fn spare(&self, tiers: u64) -> u64 {
        let used = tiers + PROCESS_DESCRIPTORS_RESERVED + descriptors(self.total() as u64);
        getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(used)
    }

    /// Of one door; 0: it is not open.
    pub(crate) fn of(&self, door: Door) -> usize {
        self.by_door[door.at()]
    }

    /// Of one peer at a door.
    pub(crate) fn of_peer(&self, door: Door) -> usize {
        (self.of(door) * PEER_PERCENT_MAX / 100).max(1)
    }

    /// Slabs that local clients may leave unread: each may keep a socket open whose connection has ended.
    pub(crate) fn unread_slabs(&self) -> usize {
        (self.of(Door::Local) / LOCAL_CONNECTIONS_PER_UNREAD_SLAB).max(1)
    }

    /// Of all doors.
    pub(crate) fn total(&self) -> usize {
        self.by_door.iter().sum()
    }

    /// What a peer is told for whom there is no room.
    pub(crate) fn refusal(&self, door: Door) -> String {
        format!(
            "no room for another connection: {} takes {}, one peer {} of them; close some, or raise limits.connections_max",
            door.name(),
            self.of(door),
            self.of_peer(door)
        )
    }
}

fn plan(settings: &Settings, tiers: u64, allowed: u64) -> Result<Caps, TooFew> {
    let reserved = tiers + PROCESS_DESCRIPTORS_RESERVED;
    // Five sixteenths more descriptors than connections: see `descriptors`.
    let fit = allowed.saturating_sub(reserved) * 16 / 21;
    let wanted = settings.limits.connections_max.unwrap_or(CONNECTIONS_USUAL);
    let total = u64::from(wanted).min(fit);
    if total < CONNECTIONS_MIN {
        return Err(TooFew { allowed, reserved });
    }
    let total = total as usize;
    let http = if settings.metrics.is_some() { HTTP_CONNECTIONS_MAX.min(total / 8) } else { 0 };
    let local = LOCAL_CONNECTIONS_MAX.min(total / 4);
    let rest = total - http - local;
    let remote = if settings.tcp.is_some() { rest / 2 } else { 0 };
    let framed = FRAMED_CONNECTIONS_MAX.min(remote / 2);
    let mut by_door = [0; Door::ALL.len()];
    by_door[Door::Local.at()] = local;
    by_door[Door::Unix.at()] = rest - remote;
    by_door[Door::Tcp.at()] = remote - framed;
    by_door[Door::Framed.at()] = framed;
    by_door[Door::Http.at()] = http;
    Ok(Caps { by_door })
}

/// Descriptors that so many connections may need: a local one, at most a quarter of them, has its process' pidfd beside it, and
/// for every fourth local one a socket may be kept whose peer has not read its slab.
const fn descriptors(connections: u64) -> u64 {
    connections + (5 * connections).div_ceil(16)
}

/// Raises the limit of open files to what the system lets this process have, and returns it.
fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let now = limit.current.unwrap_or(u64::MAX);
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => most,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Caps, Door, TooFew, descriptors, plan};
    use crate::config::{Settings, parse};
    use crate::limits::{CONNECTIONS_MIN, LOCAL_CONNECTIONS_MAX, PROCESS_DESCRIPTORS_RESERVED};
    use std::path::Path;

    fn settings(text: &str) -> Settings {
        parse(Path::new("test"), text).unwrap()
    }

    const TIERS: u64 = 40;
    const DOORS: &str = "tcp = \"127.0.0.1:1\"\nmetrics = \"127.0.0.1:2\"\n";

    fn of_all(caps: &Caps) -> [usize; 5] {
        Door::ALL.map(|door| caps.of(door))
    }

    #[test]
    fn every_door_has_a_part_and_all_fit_the_open_files() {
        let settings = settings(DOORS);
        for allowed in (160..2_000).chain([20_000, 1 << 40]) {
            let Ok(caps) = plan(&settings, TIERS, allowed) else { continue };
            let parts = of_all(&caps);
            assert!(parts.iter().all(|part| *part > 0), "{allowed}: {parts:?}");
            assert!(
                caps.of(Door::Local) * 4 <= caps.total() && caps.of(Door::Local) <= LOCAL_CONNECTIONS_MAX
            );
            assert!(
                TIERS + PROCESS_DESCRIPTORS_RESERVED + descriptors(caps.total() as u64) <= allowed,
                "{allowed}: {parts:?}"
            );
            assert!((1..=caps.of(Door::Local)).contains(&caps.unread_slabs()));
            assert!(Door::ALL.iter().all(|door| (1..=caps.of(*door)).contains(&caps.of_peer(*door))));
        }
    }

    #[test]
    fn a_setting_bounds_them_and_too_few_open_files_are_said() {
        let caps =
            plan(&settings(&format!("{DOORS}[limits]\nconnections_max = 100\n")), TIERS, 10_000).unwrap();
        assert_eq!(of_all(&caps), [25, 32, 16, 15, 12]);
        let settings = settings("");
        let TooFew { allowed, reserved } = plan(&settings, TIERS, 64).unwrap_err();
        assert_eq!(allowed, 64);
        let enough = reserved + descriptors(CONNECTIONS_MIN);
        assert!(plan(&settings, TIERS, enough).is_ok() && plan(&settings, TIERS, enough - 2).is_err());
    }
}
