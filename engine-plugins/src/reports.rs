//! What calls return. Owns: the report classes. Must not know: how calls are made.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use turnkv_client::{Decline, MissCause, NotDurable};

/// What became of an offload's pages.
#[pyclass(frozen, get_all, module = "turnkv")]
pub(crate) struct OffloadReport {
    /// Pages stored now.
    pub(crate) stored: usize,
    /// Pages that were there already.
    pub(crate) present: usize,
    /// Pages not taken.
    pub(crate) declined: usize,
    /// Why the first of them was not.
    pub(crate) first_decline: Option<&'static str>,
    /// Whether all are on NVMe.
    pub(crate) durable: bool,
    /// Why they are not, where that was asked for and the server said.
    pub(crate) not_durable: Option<&'static str>,
    /// How the pages travelled.
    pub(crate) plane: Option<&'static str>,
}

/// What a reload brought.
#[pyclass(frozen, get_all, module = "turnkv")]
pub(crate) struct ReloadReport {
    /// Leading pages that hold verified bytes now.
    pub(crate) pages: usize,
    /// Of these, found in DRAM.
    pub(crate) from_dram: usize,
    /// Of these, read from NVMe.
    pub(crate) from_nvme: usize,
    /// Why the run ended early.
    pub(crate) miss: Option<&'static str>,
    /// How the pages travelled.
    pub(crate) plane: Option<&'static str>,
}

/// What the pool holds of a session.
#[pyclass(frozen, get_all, module = "turnkv")]
pub(crate) struct TurnBegun {
    /// 1 for a new session.
    pub(crate) turn: u32,
    /// Leading pages in the pool, a partial tail among them.
    pub(crate) pages: usize,
    /// Of these, in DRAM.
    pub(crate) dram: usize,
    /// Hash of the partial tail.
    pub(crate) tail: Option<Py<PyBytes>>,
    /// Its tokens.
    pub(crate) tail_tokens: u32,
    /// Pages after them that only the archive has.
    pub(crate) archived: usize,
    /// Pages after them that another pool of the cluster has.
    pub(crate) afar: usize,
}

/// What a prefetch began.
#[pyclass(frozen, get_all, module = "turnkv")]
pub(crate) struct Prefetched {
    /// Promotions begun.
    pub(crate) started: usize,
    /// Pages in DRAM already.
    pub(crate) ready: usize,
}

impl From<turnkv_client::OffloadReport> for OffloadReport {
    fn from(report: turnkv_client::OffloadReport) -> Self {
        OffloadReport {
            stored: report.stored,
            present: report.present,
            declined: report.declined,
            first_decline: report.first_decline.map(decline_name),
            durable: report.durable,
            not_durable: report.not_durable.map(not_durable_name),
            plane: report.plane.map(turnkv_client::Plane::name),
        }
    }
}

impl From<turnkv_client::ReloadReport> for ReloadReport {
    fn from(report: turnkv_client::ReloadReport) -> Self {
        ReloadReport {
            pages: report.pages,
            from_dram: report.from_dram,
            from_nvme: report.from_nvme,
            miss: report.miss.map(miss_name),
            plane: report.plane.map(turnkv_client::Plane::name),
        }
    }
}

#[pymethods]
impl OffloadReport {
    fn __repr__(&self) -> String {
        format!(
            "OffloadReport(stored={}, present={}, declined={}, first_decline={}, durable={}, not_durable={}, plane={})",
            self.stored,
            self.present,
            self.declined,
            text(self.first_decline),
            truth(self.durable),
            text(self.not_durable),
            text(self.plane),
        )
    }
}

#[pymethods]
impl ReloadReport {
    fn __repr__(&self) -> String {
        let ReloadReport { pages, from_dram, from_nvme, miss, plane } = self;
        format!(
            "ReloadReport(pages={pages}, from_dram={from_dram}, from_nvme={from_nvme}, miss={}, plane={})",
            text(*miss),
            text(*plane)
        )
    }
}

#[pymethods]
impl TurnBegun {
    fn __repr__(&self) -> String {
        let TurnBegun { turn, pages, dram, tail_tokens, archived, afar, .. } = self;
        format!(
            "TurnBegun(turn={turn}, pages={pages}, dram={dram}, tail_tokens={tail_tokens}, archived={archived}, afar={afar})"
        )
    }
}

#[pymethods]
impl Prefetched {
    fn __repr__(&self) -> String {
        format!("Prefetched(started={}, ready={})", self.started, self.ready)
    }
}

fn text(text: Option<&str>) -> String {
    text.map_or_else(|| "None".to_owned(), |text| format!("'{text}'"))
}

fn truth(truth: bool) -> &'static str {
    if truth { "True" } else { "False" }
}

/// A miss in one word.
pub(crate) fn miss_name(miss: MissCause) -> &'static str {
    match miss {
        MissCause::Absent => "absent",
        MissCause::Checksum => "checksum",
        MissCause::Io => "io",
        MissCause::Busy => "busy",
        MissCause::Incomplete => "incomplete",
        MissCause::LeaseExpired => "lease_expired",
        MissCause::Deadline => "deadline",
        MissCause::Unavailable => "unavailable",
    }
}

/// Why kept pages are not durable, in one word.
fn not_durable_name(why: NotDurable) -> &'static str {
    match why {
        NotDurable::NoTier => "no_tier",
        NotDurable::Timeout => "timeout",
        NotDurable::Changed => "changed",
        NotDurable::Lost => "lost",
        NotDurable::Device => "device",
    }
}

/// A decline in one word.
pub(crate) fn decline_name(decline: Decline) -> &'static str {
    match decline {
        Decline::NoSpace => "no_space",
        Decline::Outranked => "outranked",
        Decline::InFlight => "in_flight",
        Decline::NoParent => "no_parent",
        Decline::Draining => "draining",
        Decline::LeaseLimit => "lease_limit",
        Decline::LeaseExpired => "lease_expired",
        Decline::Deadline => "deadline",
        Decline::Unavailable => "unavailable",
    }
}
