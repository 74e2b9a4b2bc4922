//! What is counted and shown of TLS. Owns: the series, and how often the log says that a connection is refused. Must not know:
//! handshakes.

use crate::seldom::Seldom;
use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use std::sync::Arc;
use turnkv_transfer::tls::Fault;

/// Why a connection was refused before anything was asked on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsRefusal {
    /// The handshake failed.
    Fault(Fault),
    /// It took too long.
    Late,
    /// Too many others were under way.
    Room,
    /// TLS came to the plain port.
    NotPlain,
}

/// The series of TLS; there also where nothing speaks it.
pub(crate) struct TlsCounters {
    refused: Vec<(TlsRefusal, Counter, Seldom)>,
    /// That a certificate grants nothing is in the log this often.
    pub(super) grants_nothing: Seldom,
    /// Handshakes under way; whoever bounds them says how many.
    pub(crate) under_way: Gauge,
    /// Until the server's own certificate ends.
    pub(super) expires: Gauge,
    /// Changed files that were taken over.
    pub(super) reloaded: Counter,
    /// Changed files that could not be.
    pub(super) kept: Counter,
    /// How long handshakes take.
    pub(super) seconds: Histogram,
}

impl TlsRefusal {
    fn all() -> impl Iterator<Item = TlsRefusal> {
        let others = [TlsRefusal::Late, TlsRefusal::Room, TlsRefusal::NotPlain];
        Fault::ALL.into_iter().map(TlsRefusal::Fault).chain(others)
    }

    fn name(self) -> &'static str {
        match self {
            TlsRefusal::Fault(fault) => fault.name(),
            TlsRefusal::Late => "late",
            TlsRefusal::Room => "room",
            TlsRefusal::NotPlain => "not_plain",
        }
    }

    fn todo(self) -> &'static str {
        match self {
            TlsRefusal::Fault(Fault::NotTls) => {
                "plain bytes came to the TLS port: its client must use tls://"
            }
            TlsRefusal::Fault(Fault::NoCertificate) => {
                "a client showed no certificate: it needs one of tls.client_ca"
            }
            TlsRefusal::Fault(Fault::Authority) => {
                "no authority of tls.client_ca signed a client's certificate"
            }
            TlsRefusal::Fault(Fault::Time) => "a client's certificate is out of its time",
            TlsRefusal::Fault(Fault::Version) => {
                "a client does not speak TLS 1.3, or nothing that is spoken here over it"
            }
            TlsRefusal::Fault(Fault::RefusedByPeer) => "a client refuses this server's certificate",
            TlsRefusal::Fault(Fault::Certificate | Fault::Name) => "a client's certificate cannot be used",
            TlsRefusal::Fault(Fault::Malformed) => "what a client sent is not a handshake of TLS",
            TlsRefusal::Late => "a client's handshake took too long",
            TlsRefusal::Room => "too many handshakes are under way",
            TlsRefusal::NotPlain => {
                "TLS came to the plain port: give the server [tls], or its client http://"
            }
        }
    }
}

impl TlsCounters {
    /// Nothing happened. `exposed`: plain TCP is open off the loopback.
    pub(crate) fn new(exposed: bool) -> Arc<TlsCounters> {
        let (refused, reloads) = ("turnkv_tls_refused_total", "turnkv_tls_reloads_total");
        describe_counter!(
            refused,
            "Connections refused before they asked anything: their handshake failed, took too long or had no room, or TLS came to the plain port"
        );
        describe_counter!(
            reloads,
            "Changed files of [tls]: taken over (done), or of no use so that the old ones stay (kept)"
        );
        describe_gauge!("turnkv_tls_handshaking_connections", "Handshakes under way");
        describe_gauge!(
            "turnkv_tls_handshaking_limit_connections",
            "Handshakes that may be; one peer may have part of them"
        );
        describe_gauge!(
            "turnkv_tls_expires_seconds",
            "Until the server's certificate ends; 0: TCP is not TLS"
        );
        describe_gauge!(
            "turnkv_tls_insecure_servers",
            "1: plain TCP is open off the loopback, as insecure = true says"
        );
        describe_histogram!("turnkv_tls_handshake_seconds", "Time of a handshake, from its first byte on");
        gauge!("turnkv_tls_handshaking_limit_connections").set(crate::limits::HANDSHAKES_MAX as f64);
        gauge!("turnkv_tls_insecure_servers").set(f64::from(u8::from(exposed)));
        let counted = |why: TlsRefusal| (why, counter!(refused, "reason" => why.name()), Seldom::new());
        Arc::new(TlsCounters {
            refused: TlsRefusal::all().map(counted).collect(),
            grants_nothing: Seldom::new(),
            under_way: gauge!("turnkv_tls_handshaking_connections"),
            expires: gauge!("turnkv_tls_expires_seconds"),
            reloaded: counter!(reloads, "result" => "done"),
            kept: counter!(reloads, "result" => "kept"),
            seconds: histogram!("turnkv_tls_handshake_seconds"),
        })
    }

    /// A connection of this host was refused; `why` says more, where there is more to say.
    pub(crate) fn refused(&self, refusal: TlsRefusal, peer: &dyn std::fmt::Debug, why: &str) {
        let Some((_, counter, said)) = self.refused.iter().find(|(of, _, _)| *of == refusal) else { return };
        counter.increment(1);
        if let Some(unsaid) = said.may_say() {
            tracing::warn!(?peer, reason = refusal.name(), why, unsaid, "{}", refusal.todo());
        }
    }
}
