//! The NICs of this host towards one server process. Owns: opening them in the background, the rail over each, pauses after what
//! failed. Must not know: how rails are asked for, what goes over them.
//!
//! ```text
//! closed --a call came, and no pause goes on--> opening --there--> open: rail, no rail, rail, ...
//!    ^                                              \--not there--> closed, with a pause that grows
//! ```

use super::pause::Pause;
use crate::config::FabricConfig;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::limits::{NIC_PAUSE_MAX, NIC_PAUSE_MIN, RAIL_PAUSE_MAX, RAIL_PAUSE_MIN};
use parking_lot::Mutex;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Notify;
use turnkv_transfer::fabric::nics::{NicOptions, open_client};
use turnkv_transfer::fabric::{Engine, RailOffers, Target};

/// Host and port of the server, as its address has them.
pub(super) type Peer = (String, u16);

/// All NICs that may be used.
#[derive(Debug)]
pub(super) struct Nics {
    peer: Peer,
    options: NicOptions,
    /// Numbers the domains of a client, whichever server they are for.
    numbers: Arc<AtomicU32>,
    places: Mutex<Vec<NicPlace>>,
    /// Rings when a place is not being opened any more.
    opened: Notify,
}

/// Where a NIC is, or may come to be.
#[derive(Debug)]
struct NicPlace {
    engine: Engine,
    /// None: the first that can be used.
    name: Option<String>,
    state: PlaceState,
    pause: Pause,
    /// Why there is none, said last.
    why: String,
}

#[derive(Debug)]
enum PlaceState {
    Closed,
    Opening,
    Open(Arc<Nic>),
}

/// One NIC that is open.
#[derive(Debug)]
pub(super) struct Nic {
    /// The number of its domain.
    pub(super) number: u32,
    pub(super) engine: Engine,
    /// What is registered for its rails.
    pub(super) domain: Arc<dyn RailOffers>,
    rail: Mutex<NicRail>,
}

#[derive(Debug)]
struct NicRail {
    open: Option<HeldRail>,
    pause: Pause,
}

/// The rail over a NIC.
#[derive(Debug)]
pub(super) struct HeldRail {
    /// The server's number of it.
    pub(super) number: u64,
    pub(super) target: Arc<dyn Target>,
}

impl Nics {
    /// Those that these settings allow; none is open yet.
    pub(super) fn new(config: &FabricConfig, peer: Peer, numbers: &Arc<AtomicU32>) -> Arc<Nics> {
        let provider = Some(config.libfabric_provider.clone()).filter(|provider| !provider.is_empty());
        let options = NicOptions {
            engines: Vec::new(),
            names: config.nics.clone(),
            providers: provider.into_iter().collect(),
            source: None,
        };
        let names: Vec<Option<String>> = match config.nics.as_slice() {
            [] => vec![None],
            names => names.iter().cloned().map(Some).collect(),
        };
        let engines = Engine::ALL.into_iter().filter(|engine| *engine != Engine::Framed);
        let engines = engines.filter(|engine| config.choice.allows(*engine));
        let places = engines.flat_map(|engine| names.iter().map(move |name| NicPlace::new(engine, name)));
        Arc::new(Nics {
            peer,
            options,
            numbers: Arc::clone(numbers),
            places: Mutex::new(places.collect()),
            opened: Notify::new(),
        })
    }

    /// Begins to open, in the background, what is closed and may be tried again.
    pub(super) fn wake(self: &Arc<Self>) {
        let mut places = self.places.lock();
        for (at, place) in places.iter_mut().enumerate() {
            if !matches!(place.state, PlaceState::Closed) || place.pause.goes_on() {
                continue;
            }
            let nics = Arc::downgrade(self);
            let (engine, name) = (place.engine, place.name.clone());
            let (options, peer) = (self.options.clone(), self.peer.clone());
            // Loading a library and opening a device take longer than any call should wait.
            let opening = move || {
                let options = NicOptions { source: source_towards(&peer), ..options };
                // A place that stayed `Opening` would hold up calls for ever.
                let made = std::panic::catch_unwind(|| open_client(&options, engine, name.as_deref()));
                let made = match made {
                    Ok(made) => made.map_err(|why| why.to_string()),
                    Err(_) => Err("opening it panicked".to_owned()),
                };
                if let Some(nics) = nics.upgrade() {
                    nics.note_opened(at, made);
                }
            };
            match std::thread::Builder::new().name("turnkv-nic".to_owned()).spawn(opening) {
                Ok(_) => place.state = PlaceState::Opening,
                Err(error) => place.fail(format!("no thread to open it: {error}")),
            }
        }
    }

    /// Waits until nothing is being opened.
    pub(super) async fn opened(&self, deadline: Deadline) -> Result<()> {
        loop {
            let rings = self.opened.notified();
            let opening = |place: &NicPlace| matches!(place.state, PlaceState::Opening);
            if !self.places.lock().iter().any(opening) {
                return Ok(());
            }
            deadline.bound(rings).await?;
        }
    }

    /// Those whose rail is open.
    pub(super) fn with_rails(&self) -> Vec<Arc<Nic>> {
        self.open().into_iter().filter(|nic| nic.rail.lock().open.is_some()).collect()
    }

    /// Those without a rail that may have one now: of one engine if that has rails already. Lets go of rails that died.
    pub(super) fn lacking(&self) -> Vec<Arc<Nic>> {
        let nics = self.open();
        for nic in &nics {
            nic.look();
        }
        let used = nics.iter().find(|nic| nic.rail.lock().open.is_some()).map(|nic| nic.engine);
        let may = |nic: &Arc<Nic>| {
            let rail = nic.rail.lock();
            rail.open.is_none() && !rail.pause.goes_on() && used.is_none_or(|engine| engine == nic.engine)
        };
        nics.into_iter().filter(may).collect()
    }

    /// The NIC is of no use as it is open: it is opened anew, after a pause.
    pub(super) fn close(&self, nic: &Arc<Nic>, why: String) {
        let mut places = self.places.lock();
        let is_it =
            |place: &&mut NicPlace| matches!(&place.state, PlaceState::Open(open) if Arc::ptr_eq(open, nic));
        if let Some(place) = places.iter_mut().find(is_it) {
            place.fail(why);
        }
    }

    /// Why there is no NIC, for each that could be.
    pub(super) fn why_none(&self) -> String {
        let places = self.places.lock();
        let whys = places.iter().filter(|place| !place.why.is_empty());
        let whys: Vec<String> = whys.map(|place| format!("{}: {}", place.engine, place.why)).collect();
        whys.join("; ")
    }

    fn open(&self) -> Vec<Arc<Nic>> {
        let places = self.places.lock();
        let open = places.iter().filter_map(|place| match &place.state {
            PlaceState::Open(nic) => Some(Arc::clone(nic)),
            PlaceState::Closed | PlaceState::Opening => None,
        });
        open.collect()
    }

    fn note_opened(&self, at: usize, made: std::result::Result<Arc<dyn RailOffers>, String>) {
        let mut places = self.places.lock();
        if let Some(place) = places.get_mut(at) {
            match made {
                Ok(domain) => {
                    let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(fabric = %place.engine, nic = domain.name(), "pages can go by this NIC");
                    place.why.clear();
                    place.state = PlaceState::Open(Arc::new(Nic::new(number, place.engine, domain)));
                }
                Err(why) => place.fail(why),
            }
        }
        drop(places);
        self.opened.notify_waiters();
    }
}

impl NicPlace {
    fn new(engine: Engine, name: &Option<String>) -> NicPlace {
        let pause = Pause::within(NIC_PAUSE_MIN, NIC_PAUSE_MAX);
        NicPlace { engine, name: name.clone(), state: PlaceState::Closed, pause, why: String::new() }
    }

    fn fail(&mut self, why: String) {
        if self.why != why {
            tracing::info!(fabric = %self.engine, nic = self.name.as_deref(), why, "pages do not go by this NIC");
        }
        self.state = PlaceState::Closed;
        self.why = why;
        self.pause.begin();
    }
}

impl Nic {
    fn new(number: u32, engine: Engine, domain: Arc<dyn RailOffers>) -> Nic {
        let pause = Pause::within(RAIL_PAUSE_MIN, RAIL_PAUSE_MAX);
        Nic { number, engine, domain, rail: Mutex::new(NicRail { open: None, pause }) }
    }

    /// Its rail is open.
    pub(super) fn has(&self, rail: HeldRail) {
        self.rail.lock().open = Some(rail);
    }

    /// The server's number of its rail.
    pub(super) fn held(&self) -> Option<u64> {
        self.rail.lock().open.as_ref().map(|rail| rail.number)
    }

    /// No rail could be opened, or the server says that it has it no more.
    pub(super) fn lose(&self) {
        let mut rail = self.rail.lock();
        rail.pause.begin();
        let gone = rail.open.take();
        drop(rail);
        drop(gone);
    }

    /// Ends its rail, which is no fault of it: another one may be opened at once.
    pub(super) fn renew(&self) {
        let gone = self.rail.lock().open.take();
        drop(gone);
    }

    fn look(&self) {
        let rail = self.rail.lock();
        let death = rail.open.as_ref().and_then(|rail| rail.target.death());
        drop(rail);
        if let Some(cause) = death {
            tracing::debug!(fabric = %self.engine, nic = self.domain.name(), %cause, "a rail over a NIC ended");
            self.lose();
        }
    }
}

/// The host's own address towards a server; none: the system does not say.
fn source_towards(peer: &Peer) -> Option<IpAddr> {
    let server = (peer.0.as_str(), peer.1).to_socket_addrs().ok()?.next()?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Sends nothing: the system chooses the way, and with it the address.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests;
