//! What is counted and shown of pages over a network. Owns: the series' names. Must not know: when they change.

use super::inflight::peer_share;
use super::nics::NicCounts;
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use std::sync::atomic::{AtomicU64, Ordering};
use turnkv_transfer::fabric::{Cause, Direction, Engine};

/// The handles.
pub(super) struct Series {
    /// Bytes in flight.
    pub(super) inflight_bytes: Gauge,
    /// The same of the client that has most.
    pub(super) client_inflight_bytes: Gauge,
    /// The same of the peer that has most.
    pub(super) peer_inflight_bytes: Gauge,
    /// Transfers that waited for others to land.
    pub(super) waits: Counter,
    /// Pages that did not arrive as they left.
    pub(super) damaged_pages: Counter,
    /// Transfers that another rail, or another attempt, did again.
    pub(super) repeated: Counter,
    /// By fabric, in the order of [`Engine::ALL`].
    fabrics: [FabricSeries; Engine::ALL.len()],
    failed: [Counter; CAUSES.len()],
}

/// What is counted and shown of one fabric.
struct FabricSeries {
    rails: Gauge,
    stuck_rails: Gauge,
    known_slabs: Gauge,
    unknown_slabs: Gauge,
    /// Bytes read, then written: also for whoever asks for a status.
    moved: [(Counter, AtomicU64); 2],
}

/// Why transfers fail, as the series names it.
const CAUSES: [&str; 6] = ["peer_gone", "refused", "stalled", "protocol", "device", "cancelled"];

impl Series {
    /// With these bounds on the bytes in flight: of all, and of one client.
    pub(super) fn new(bytes_max: u64, client_bytes_max: u64) -> Series {
        describe_gauge!(
            "turnkv_remote_rail_connections",
            "Data rails of clients on other hosts that are open, by fabric"
        );
        describe_gauge!(
            "turnkv_remote_stuck_connections",
            "Of the rails over NICs, those whose queue pair could not be destroyed yet: slots that it had stay out of use"
        );
        describe_gauge!(
            "turnkv_remote_known_slabs",
            "Slabs registered with the NICs of a fabric, each counted for every NIC"
        );
        describe_gauge!(
            "turnkv_remote_unknown_slabs",
            "Slabs not registered with the NICs of a fabric, each counted for every NIC: pages of those that wait to be wait too, of those that could not be go otherwise"
        );
        show_shares(bytes_max, client_bytes_max);
        describe_counter!(
            "turnkv_remote_waits_total",
            "Transfers to and from other hosts that waited until others had landed, because as many bytes were in flight as may be"
        );
        describe_counter!(
            "turnkv_remote_damaged_pages_total",
            "Pages that did not arrive from another host as they left there: read once more, or not kept"
        );
        describe_counter!(
            "turnkv_remote_repeated_total",
            "Transfers to and from other hosts that were done again, on another rail or because a page arrived damaged"
        );
        describe_counter!(
            "turnkv_remote_moved_bytes_total",
            "Bytes of pages read from, and written to, other hosts, by fabric"
        );
        describe_counter!(
            "turnkv_remote_failed_total",
            "Transfers to and from other hosts that failed, by cause"
        );
        Series {
            inflight_bytes: gauge!("turnkv_remote_inflight_bytes"),
            client_inflight_bytes: gauge!("turnkv_remote_client_inflight_bytes"),
            peer_inflight_bytes: gauge!("turnkv_remote_peer_inflight_bytes"),
            waits: counter!("turnkv_remote_waits_total"),
            damaged_pages: counter!("turnkv_remote_damaged_pages_total"),
            repeated: counter!("turnkv_remote_repeated_total"),
            fabrics: Engine::ALL.map(FabricSeries::new),
            failed: CAUSES.map(|cause| counter!("turnkv_remote_failed_total", "cause" => cause)),
        }
    }

    /// So many bytes are where they belong.
    pub(super) fn moved(&self, engine: Engine, direction: Direction, bytes: u64) {
        if let Some((counter, sum)) =
            self.fabric(engine).and_then(|fabric| fabric.moved.get(place(direction)))
        {
            counter.increment(bytes);
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes that an engine has moved this way since the start.
    pub(super) fn moved_bytes(&self, engine: Engine, direction: Direction) -> u64 {
        let moved = self.fabric(engine).and_then(|fabric| fabric.moved.get(place(direction)));
        moved.map_or(0, |(_, sum)| sum.load(Ordering::Relaxed))
    }

    /// What an engine's rails, and its NICs together, have now.
    pub(super) fn show(&self, engine: Engine, rails: usize, nics: &NicCounts) {
        let Some(fabric) = self.fabric(engine) else { return };
        fabric.rails.set(rails as f64);
        fabric.stuck_rails.set(nics.rails_stuck as f64);
        fabric.known_slabs.set(nics.slabs_known as f64);
        fabric.unknown_slabs.set(nics.slabs_unknown as f64);
    }

    fn fabric(&self, engine: Engine) -> Option<&FabricSeries> {
        let at = Engine::ALL.iter().position(|known| *known == engine)?;
        self.fabrics.get(at)
    }

    /// A transfer failed.
    pub(super) fn failed(&self, cause: &Cause) {
        let at = match cause {
            Cause::PeerGone => 0,
            Cause::Refused => 1,
            Cause::Stalled => 2,
            Cause::Protocol(_) => 3,
            Cause::Device(_) => 4,
            Cause::Cancelled => 5,
        };
        if let Some(counter) = self.failed.get(at) {
            counter.increment(1);
        }
    }
}

impl FabricSeries {
    fn new(engine: Engine) -> FabricSeries {
        let fabric = engine.name();
        let moved = |direction: &'static str| {
            let labels = [("fabric", fabric), ("direction", direction)];
            (counter!("turnkv_remote_moved_bytes_total", &labels), AtomicU64::new(0))
        };
        FabricSeries {
            rails: gauge!("turnkv_remote_rail_connections", "fabric" => fabric),
            stuck_rails: gauge!("turnkv_remote_stuck_connections", "fabric" => fabric),
            known_slabs: gauge!("turnkv_remote_known_slabs", "fabric" => fabric),
            unknown_slabs: gauge!("turnkv_remote_unknown_slabs", "fabric" => fabric),
            moved: [moved("read"), moved("written")],
        }
    }
}

/// What is in flight, and what may be.
fn show_shares(bytes_max: u64, client_bytes_max: u64) {
    describe_gauge!(
        "turnkv_remote_inflight_bytes",
        "Bytes of pages in flight to and from clients on other hosts"
    );
    describe_gauge!(
        "turnkv_remote_inflight_limit_bytes",
        "What all of these clients together may have in flight"
    );
    describe_gauge!(
        "turnkv_remote_client_inflight_bytes",
        "Bytes of pages in flight of the client on another host that has most"
    );
    describe_gauge!("turnkv_remote_client_inflight_limit_bytes", "What one such client may have in flight");
    describe_gauge!(
        "turnkv_remote_peer_inflight_bytes",
        "Bytes of pages in flight of the address whose clients have most"
    );
    describe_gauge!(
        "turnkv_remote_peer_inflight_limit_bytes",
        "What the clients of one address together may have in flight"
    );
    gauge!("turnkv_remote_inflight_limit_bytes").set(bytes_max as f64);
    gauge!("turnkv_remote_client_inflight_limit_bytes").set(client_bytes_max as f64);
    gauge!("turnkv_remote_peer_inflight_limit_bytes").set(peer_share(bytes_max) as f64);
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}
