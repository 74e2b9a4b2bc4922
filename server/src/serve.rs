//! The whole life of the server on one screen: build, listen, wait for the end, drain, leave. Owns: the order of these. Must
//! not know: the verbs.

mod caretaker;
mod check;
mod hand_over;
mod kept;
mod listeners;
mod places;
mod reread;
mod signals;

use crate::access::Callers;
use crate::cluster::{Cluster, HoldsPages};
use crate::config::{EventsConfig, Settings};
use crate::connections::accept::Admitting;
use crate::connections::caps::Caps;
use crate::connections::opening::{Opening, TakesFrames};
use crate::connections::{Connections, Door};
use crate::doors::calls::CallSeconds;
use crate::doors::framed::FramedDoor;
use crate::doors::grpc::answers::Answers;
use crate::doors::grpc::budget::Budget;
use crate::doors::grpc::{self, Grpc};
use crate::doors::http;
use crate::doors::local::LocalDoor;
use crate::engine::Engine;
use crate::events::EventDoors;
use crate::keep::held::HeldDescriptors;
use crate::limits::{DOORS_END_MAX, EMBEDDED_LOOK_MS};
use crate::manager::ServiceManager;
use crate::moves::Mover;
use crate::pulls::Puller;
use crate::report::Advise;
use crate::snapshots::Snapshots;
use crate::snapshots::tier::Tier;
use crate::supervise::Supervisor;
use crate::telemetry;
use crate::tls::TlsCounters;
use crate::upgrade::asked::Upgrades;
use crate::upgrade::before::{Before, failed_before};
use crate::upgrade::program::Program;
use crate::upgrade::replace::Succession;
use caretaker::Caretaker;
use check::{check_start, take_place};
use hand_over::{Doors, ends, shut, stop_waiting};
use kept::{free_kept, kept_by};
use listeners::{Listeners, cannot_listen};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use places::{callers, credentials};
use reread::Rereader;
use signals::Signals;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use turnkv_transfer::{ServingLock, keep_heap};

/// How `turnkv serve` was started.
pub(crate) struct Start {
    /// What was configured.
    pub(crate) settings: Settings,
    /// Where: read again at SIGHUP.
    pub(crate) config: Option<PathBuf>,
    /// Leave once nobody has been connected for so long (a private pool of one user's clients).
    pub(crate) idle: Option<Duration>,
    /// Whose place in this process it takes, until it serves.
    pub(crate) before: Before,
    /// What came with this process, and what goes to the next program in it.
    pub(crate) held: HeldDescriptors,
}

impl Start {
    /// Who wants to hear how this server is; of a private pool nobody does: it is part of somebody else's service.
    fn manager(&self) -> Option<ServiceManager> {
        if self.idle.is_some() { None } else { ServiceManager::of_environment() }
    }
}

/// How a server's life ends, if not by an error.
pub(crate) enum Left {
    /// For good.
    Gone,
    /// Another program is to take its place.
    For(Succession),
}

/// Serves until SIGTERM, SIGINT or, for a private pool, until nobody is left; then writes what is dirty and leaves. SIGUSR2 has another
/// program take over: memory and listening sockets stay with the keeper. SIGHUP has the
/// configuration read again; where there is no file, and for a private pool, it ends the server too. A vital thread or task that ends is an error, at once: what is stored is good, and the next start serves it.
pub(crate) async fn run(mut start: Start) -> anyhow::Result<Left> {
    let metrics = telemetry::start_metrics()?;
    // While it starts, one who asks for an upgrade waits.
    let upgrade = signal(SignalKind::user_defined2())?;
    // What the program before left in memory is to be written if this one is to leave at once; else a start ends at once.
    let early = if start.before.is_some() { Some(Signals::listen()?) } else { None };
    // A file that may not grow (`ulimit -f`) is an error of the write, not the end of the process.
    drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
    let (supervisor, mut endings) = Supervisor::new();
    supervisor.watch_panics();
    keep_heap();
    // What can be wrong with a few files is said before memory is touched, which takes long.
    let callers = callers(&start.settings)?;
    let opening = opening(&start.settings, &supervisor)?;
    make_place(&start.settings.socket)?;
    let place = take_place(&start.settings)?;
    let (settings, held) = (start.settings.clone(), start.held.clone());
    let kept = kept_by(&settings, &held)?;
    settings.between().iter().for_each(|note| tracing::warn!("{note}"));
    let cluster = settings.cluster.as_ref().map(Cluster::new).transpose()?;
    let joined = cluster.clone();
    let engine = tokio::task::spawn_blocking(move || Engine::start(settings, kept, joined)).await??;
    if let Some(cluster) = &cluster {
        cluster.is_of(Arc::downgrade(&engine) as Weak<dyn HoldsPages>);
    }
    // What is kept may have slabs of another size.
    start.settings.dram = engine.settings.dram.clone();
    Engine::run_threads(&engine, &supervisor)?;
    let events = engine.settings.events.as_ref().map_or(0, EventsConfig::descriptors);
    let descriptors = engine.descriptors() + engine.settings.archive.descriptors() + events;
    let caps = Caps::of_settings(&engine.settings, descriptors)?;
    engine.spare_descriptors(caps.spare(descriptors));
    let connections = Connections::new(caps);

    // Before anybody can find a door open: from then on there is something to finish.
    let mut signals = early.map_or_else(Signals::listen, Ok)?;
    let (stop, stopped) = watch::channel(false);
    let (idle, before, manager) = (start.idle, start.before.clone(), start.manager());
    let config = start.config.clone();
    let in_force = reread(start, &mut signals, &engine, &supervisor);
    let (upgrades, mut programs) = Upgrades::new(&engine, config, failed_before(), check_start)?;
    drop(supervisor.task("turnkv-upgrade", Arc::clone(&upgrades).follow(upgrade)));
    let house = House { engine, connections, callers, opening, supervisor, stopped, upgrades, place };
    let events = event_doors(&house.engine).await?;
    let doors = house.open(metrics, events)?;
    before.forget();
    house.upgrades.serve();
    if let Some(manager) = &manager {
        manager.serves();
    }
    tracing::info!(socket = %house.engine.settings.socket.display(), "ready");

    let nobody = nobody_left(&house.engine, idle);
    let reason = tokio::select! {
        program = hand_over::asked(&mut programs) => {
            let next = succession(&house.engine, &in_force, program, held)?;
            if let Some(manager) = &manager {
                manager.changes();
            }
            let left = hand_over::run(&house.engine, doors, &stop, &next.program, signals).await?;
            if let (false, Some(manager)) = (left, &manager) {
                manager.leaves();
            }
            return Ok(if left { Left::For(next) } else { Left::Gone });
        }
        reason = signals.end(nobody, &mut endings) => reason?,
    };
    // Whoever asks for another program from now on is told that there will be none.
    programs.close();
    if let Some(manager) = &manager {
        manager.leaves();
    }
    leave(&house.engine, doors, &stop, reason).await?;
    if idle.is_some() {
        free_kept(&house.engine);
    }
    Ok(Left::Gone)
}

/// Writes what is dirty and closes every door, for good.
async fn leave(
    engine: &Arc<Engine>,
    doors: Doors,
    stop: &watch::Sender<bool>,
    reason: &str,
) -> anyhow::Result<()> {
    tracing::info!(reason, "leaving: finishing writes");
    let leaving = Arc::clone(engine);
    tokio::task::spawn_blocking(move || leaving.leave()).await?;
    stop_waiting(engine);
    doors.local.close();
    doors.framed.close();
    stop.send_replace(true);
    if tokio::time::timeout(DOORS_END_MAX, ends(doors.tasks)).await.is_err() {
        tracing::info!("open connections were cut");
    }
    shut(engine);
    tracing::info!("left");
    Ok(())
}

/// What is left to a program that takes this one's place.
fn succession(
    engine: &Engine,
    in_force: &Mutex<Settings>,
    program: Program,
    held: HeldDescriptors,
) -> anyhow::Result<Succession> {
    let in_force = in_force.lock();
    let settings = in_force.in_force(engine.resize_report().wanted_bytes)?;
    Ok(Succession { program, settings, start: in_force.keep.start, held })
}

/// From now on SIGHUP has the configuration read again, where there is a file and the pool is nobody's own. Returns what is in force.
fn reread(
    start: Start,
    signals: &mut Signals,
    engine: &Arc<Engine>,
    supervisor: &Supervisor,
) -> Arc<Mutex<Settings>> {
    let manager = start.manager();
    let settings = Arc::new(Mutex::new(start.settings));
    let Some(path) = start.config.filter(|_| start.idle.is_none()) else { return settings };
    let Some(hangup) = signals.hangup.take() else { return settings };
    let engine = Arc::clone(engine);
    let rereader = Rereader { path, engine, hangup, settings: Arc::clone(&settings), manager };
    // Not among the tasks that end with the doors.
    drop(supervisor.task("turnkv-reread", rereader.run()));
    settings
}

/// What every door needs.
struct House {
    engine: Arc<Engine>,
    connections: Arc<Connections>,
    callers: Arc<Callers>,
    opening: Arc<Opening>,
    supervisor: Supervisor,
    stopped: watch::Receiver<bool>,
    upgrades: Arc<Upgrades>,
    /// HeldDescriptors as long as this server lives.
    place: Option<ServingLock>,
}

impl House {
    /// Opens every door.
    fn open(&self, metrics: PrometheusHandle, events: Option<EventDoors>) -> anyhow::Result<Doors> {
        let settings = &self.engine.settings;
        // All or none: somebody who was let in at one door takes this for the server.
        let sockets =
            Listeners { custody: self.engine.custody(), place: self.place.as_ref() }.all(settings)?;
        let (handle, calls) = (tokio::runtime::Handle::current(), Arc::new(CallSeconds::new()));
        let (connections, callers) = (&self.connections, &self.callers);
        let (unix, file) = sockets.grpc;
        let unix = grpc::of_reactor(unix)
            .map_err(|error| cannot_listen(error, &settings.socket.display(), "listen"))?;
        let path = sockets.local.path().to_owned();
        let local = LocalDoor::open(
            &self.engine,
            &calls,
            connections,
            callers,
            sockets.local,
            handle,
            &self.supervisor,
        );
        let local = local.map_err(|error| cannot_listen(error, &path.display(), "listen"))?;
        let waits = tokio::runtime::Handle::current();
        let framed = FramedDoor::new(&self.engine, &calls, &self.connections, waits);
        let (budget, answers) = (Budget::new(), Answers::new());
        let snapshots = Snapshots::new(&self.engine);
        if let Some(tier) = Tier::new(&snapshots) {
            // Not among the tasks: it has no end of its own. What it was doing is whole, or is not there.
            drop(self.supervisor.task("turnkv-archive", tier.run()));
        }
        if let Some(cluster) = self.engine.cluster() {
            // Not among the tasks: they have no end of their own.
            drop(self.supervisor.task("turnkv-cluster", Arc::clone(cluster).run()));
            drop(self.supervisor.task("turnkv-pull", Puller::new(&self.engine, cluster).run()));
            drop(self.supervisor.task("turnkv-move", Mover::new(&self.engine, cluster).run()));
        }
        if let (Some(events), Some(doors)) = (self.engine.events(), events) {
            // Not among the tasks: they have no end of their own.
            drop(self.supervisor.task("turnkv-events", events.run()));
            drop(self.supervisor.task("turnkv-events-doors", doors.run()));
        }
        let grpc = Grpc::new(&self.engine, &calls, &budget, &answers, snapshots, &self.upgrades)?;
        let served = grpc.serve_unix(unix, &self.connections, &self.callers, self.stopped.clone());
        let mut tasks = vec![self.supervisor.task("turnkv-grpc-unix", served)];
        if let Some(listener) = sockets.tcp {
            let admitting = Admitting::new(listener, Door::Tcp, &self.connections, &self.callers);
            let frames = Arc::clone(&framed) as Arc<dyn TakesFrames>;
            let incoming = Arc::clone(&self.opening).http2_of(admitting, frames);
            let served = grpc.serve_tcp(incoming, self.stopped.clone());
            tasks.push(self.supervisor.task("turnkv-grpc-tcp", served));
        }
        if let Some(listener) = sockets.metrics {
            let (engine, connections) = (Arc::clone(&self.engine), Arc::clone(&self.connections));
            let (callers, stopped) = (Arc::clone(&self.callers), self.stopped.clone());
            let served = http::serve(listener, engine, connections, callers, metrics, stopped);
            tasks.push(self.supervisor.task("turnkv-http", served));
        }
        let (engine, connections) = (Arc::clone(&self.engine), Arc::clone(&self.connections));
        let (looked_after, remote) = (Arc::clone(&local), Arc::clone(&framed));
        let standing = grpc.standing();
        let caretaker =
            Caretaker { engine, connections, local: looked_after, framed: remote, budget, answers, standing };
        // Not among the tasks: it has no end of its own.
        drop(self.supervisor.task("turnkv-caretaker", caretaker.run()));
        Ok(Doors { local, framed, tasks, file })
    }
}

/// Opens the doors of KV events, where there are to be some.
async fn event_doors(engine: &Engine) -> anyhow::Result<Option<EventDoors>> {
    let Some(events) = engine.events() else { return Ok(None) };
    let opened = EventDoors::open(&events).await;
    opened.map(Some).map_err(|(address, error)| cannot_listen(error, &address, "events"))
}

/// How TCP is opened: by TLS where there is `[tls]`. Plain TCP off the loopback is said at each start.
fn opening(settings: &Settings, supervisor: &Supervisor) -> anyhow::Result<Arc<Opening>> {
    let counters = TlsCounters::new(settings.tls.is_exposed(settings.tcp));
    if let Some(note) = settings.exposed() {
        tracing::warn!("{note}");
    }
    let Some(credentials) = credentials(settings, &counters)? else {
        return Ok(Opening::new(None, counters));
    };
    // Not among the tasks that end with the doors.
    drop(supervisor.task("turnkv-tls", Arc::clone(&credentials).watch()));
    Ok(Opening::new(Some(credentials), counters))
}

/// Makes the directory of the sockets.
fn make_place(socket: &Path) -> anyhow::Result<()> {
    let Some(directory) = socket.parent() else { return Ok(()) };
    std::fs::create_dir_all(directory).advise(
        || format!("cannot create {}, where the sockets are to be", directory.display()),
        "name a place that this user may write to (listen = \"unix:...\")",
    )
}

/// Returns once nobody has been connected for so long; never without a time.
async fn nobody_left(engine: &Engine, idle: Option<Duration>) {
    let Some(idle) = idle else { return std::future::pending().await };
    while engine.clients.idle_since().is_none_or(|since| since.elapsed() < idle) {
        tokio::time::sleep(Duration::from_millis(EMBEDDED_LOOK_MS)).await;
    }
}
