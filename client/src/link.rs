//! What all verbs share: the way to one pool. Owns: the breaker, the choice of data plane, connecting with
//! backoff, starting an embedded pool when nobody is there. Must not know: what a verb does.

use crate::backoff::{Attempts, Backoff};
use crate::breaker::{Breaker, BreakerState, Outcome, Pass};
use crate::config::{Address, ClientConfig, ConfigError, DataPlane, Plane};
use crate::deadline::Deadline;
use crate::embedded::Embedded;
use crate::error::{Error, ErrorKind, Result, io_cause, nobody_there};
use crate::framed::FramedPlane;
use crate::grpc::Grpc;
use crate::limits::{CONNECT_PAUSE_MIN, INLINE_PIECE_BYTES};
use crate::local::{ConnectError, Lent, LocalPool, Place, Port};
use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::Channel;
use tonic::{Response, Status};
use turnkv_transfer::PieceBuffers;
use turnkv_transfer::tls::Dial;

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) config: ClientConfig,
    pub(crate) address: Address,
    pub(crate) breaker: Mutex<Breaker>,
    pub(crate) local: Option<Arc<LocalPool>>,
    /// The way over a network, where the address names one.
    pub(crate) framed: Option<Arc<FramedPlane>>,
    /// For pages on their way out in gRPC streams.
    pub(crate) pieces: PieceBuffers,
    grpc: Grpc,
    embedded: Option<Embedded>,
}

/// How the pages of one call travel.
#[derive(Debug)]
pub(crate) enum Way {
    /// In shared memory.
    Shm(Lent),
    /// Over data rails.
    Framed(Arc<FramedPlane>, Lent),
    /// In gRPC streams.
    Inline,
}

impl Way {
    /// Its name.
    pub(crate) fn plane(&self) -> Plane {
        match self {
            Way::Shm(_) => Plane::Shm,
            Way::Framed(..) => Plane::Framed,
            Way::Inline => Plane::Inline,
        }
    }
}

/// One admitted call: says to the breaker how it ended, also when its future is dropped.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    link: &'a Link,
    pass: Option<Pass>,
}

impl Link {
    /// The way to the pool at this address, with settings that are checked.
    pub(crate) fn new(
        config: &ClientConfig,
        address: Address,
        embedded: Option<Embedded>,
    ) -> Result<Link, ConfigError> {
        address.check_plane(config.data_plane)?;
        address.check_tls(&config.tls)?;
        let local = match &address {
            Address::Unix(path) => {
                let mut beside = path.clone().into_os_string();
                beside.push(turnkv_proto::limits::LOCAL_SOCKET_SUFFIX);
                Some(LocalPool::new(Place::Unix(PathBuf::from(beside))))
            }
            Address::Tcp(..) | Address::Tls(..) | Address::Http(_) => None,
        };
        let connect = Duration::from_millis(config.connect_ms);
        let tls = match &address {
            Address::Tls(host, port) => Some(Dial::new(host, *port, config.tls.clone().or_environment())),
            Address::Unix(_) | Address::Tcp(..) | Address::Http(_) => None,
        };
        let port = match &address {
            Address::Tcp(host, number) | Address::Tls(host, number) => {
                Some(Port { host: host.clone(), number: *number, tls, connect })
            }
            Address::Unix(_) | Address::Http(_) => None,
        };
        let fabric = config.checked_fabric(|name| std::env::var(name).ok())?;
        let framed = port.filter(|_| config.data_plane != DataPlane::Inline);
        let framed = framed.map(|port| Arc::new(FramedPlane::new(port, fabric)));
        let grpc = Grpc::new(&address, connect, &config.tls)?;
        let cooldown = Duration::from_millis(config.breaker.cooldown_ms);
        let breaker = Mutex::new(Breaker::new(config.breaker.failures, cooldown));
        let pieces = PieceBuffers::new(INLINE_PIECE_BYTES);
        let config = config.clone();
        Ok(Link { config, address, breaker, local, framed, pieces, grpc, embedded })
    }

    /// The deadline of a call that was given this one, or none.
    pub(crate) fn deadline(&self, given: Option<Duration>) -> Deadline {
        Deadline::after(given.unwrap_or(Duration::from_millis(self.config.call_ms)))
    }

    /// The deadline of a call that may have to start the pool first.
    pub(crate) fn starting_deadline(&self, within: Option<Duration>) -> Deadline {
        let start = if self.embedded.is_some() { crate::limits::EMBEDDED_START_WAIT } else { Duration::ZERO };
        let within = within.unwrap_or(Duration::from_millis(self.config.call_ms));
        Deadline::after(start.saturating_add(within))
    }

    /// Begins a call, unless the pool is known to be sick.
    pub(crate) fn admit(&self) -> Result<Call<'_>> {
        match self.breaker.lock().admit(Instant::now()) {
            Ok(pass) => Ok(Call { link: self, pass: Some(pass) }),
            Err(left) => {
                let next = match left.as_millis() {
                    // Its time is over, and another call found that first.
                    0 => "a call that was let through finds out whether it does now".to_owned(),
                    left => format!("the next call is let through in {left} ms"),
                };
                Err(Error::new(ErrorKind::BreakerOpen, format!("the pool was not answering; {next}")))
            }
        }
    }

    /// Whether calls are let through as usual.
    pub(crate) fn is_well(&self) -> bool {
        self.breaker.lock().state() == BreakerState::Closed
    }

    /// How the pages of a call travel, with the connection that it has for itself.
    pub(crate) async fn way(&self, deadline: Deadline) -> Result<Way> {
        let Some(framed) = &self.framed else {
            return Ok(self.lend_shm(deadline).await?.map_or(Way::Inline, Way::Shm));
        };
        let may_go_inline = self.config.data_plane == DataPlane::Auto;
        if may_go_inline && framed.speaks_no_frames() {
            return Ok(Way::Inline);
        }
        let mut backoff = self.backoff(deadline);
        loop {
            match framed.control.acquire(deadline).await {
                Ok(lent) => return Ok(Way::Framed(Arc::clone(framed), lent)),
                Err(ConnectError::NobodyThere(error)) => {
                    let nobody = || ConnectError::NobodyThere(error).into();
                    self.find_server(&mut backoff, deadline, nobody).await?;
                }
                Err(ConnectError::NoFrames(error)) if may_go_inline => {
                    tracing::info!(%error, "the server speaks no frames: pages go in gRPC streams");
                    framed.note_no_frames();
                    return Ok(Way::Inline);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A connection that speaks frames, local or over a network, or `None`: everything goes by gRPC.
    pub(crate) async fn lend(&self, deadline: Deadline) -> Result<Option<Lent>> {
        Ok(match self.way(deadline).await? {
            Way::Shm(lent) | Way::Framed(_, lent) => Some(lent),
            Way::Inline => None,
        })
    }

    /// A local connection, or `None`: there is no shared memory with this server.
    pub(crate) async fn lend_shm(&self, deadline: Deadline) -> Result<Option<Lent>> {
        let Some(local) = self.local.as_ref().filter(|_| self.config.data_plane != DataPlane::Inline) else {
            return Ok(None);
        };
        let mut backoff = self.backoff(deadline);
        loop {
            let nobody = match local.acquire(deadline).await {
                Ok(lent) => return Ok(Some(lent)),
                Err(ConnectError::Failed(error) | ConnectError::NoFrames(error)) => return Err(error),
                Err(ConnectError::NobodyThere(error)) => error,
            };
            if self.config.data_plane == DataPlane::Auto && nobody.kind() == io::ErrorKind::NotFound {
                // A server that serves gRPC here without a local socket is a choice, not a fault.
                if let Address::Unix(path) = &self.address
                    && path.exists()
                {
                    return Ok(None);
                }
            }
            self.find_server(&mut backoff, deadline, || ConnectError::NobodyThere(nobody).into()).await?;
        }
    }

    /// One unary or streaming gRPC call, by the deadline. One whose connection is lost is made again where somebody listens, a few times:
    /// no verb does harm twice.
    pub(crate) async fn rpc<T, F, Fut>(&self, deadline: Deadline, mut call: F) -> Result<T>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let (mut backoff, mut attempts) = (self.backoff(deadline), Attempts::default());
        loop {
            let status = match deadline.bound(call(self.grpc.channel())).await? {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => status,
            };
            let unreached = io_cause(&status).is_some_and(nobody_there);
            let error = self.grpc.explain(Error::from(status));
            if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Deadline) {
                self.grpc.reset();
            }
            if unreached {
                self.find_server(&mut backoff, deadline, || error).await?;
                continue;
            }
            let again = error.kind == ErrorKind::Unavailable && attempts.may_reconnect();
            if !again || !self.listens(deadline).await {
                return Err(error);
            }
        }
    }

    /// Whether somebody listens for the calls of this client, so that one whose connection was lost is worth another attempt.
    pub(crate) async fn listens(&self, deadline: Deadline) -> bool {
        let soon = deadline.within(Duration::from_millis(self.config.connect_ms));
        let connects = async {
            match &self.address {
                Address::Unix(path) => UnixStream::connect(path).await.is_ok(),
                Address::Tcp(host, port) | Address::Tls(host, port) => {
                    TcpStream::connect((host.as_str(), *port)).await.is_ok()
                }
                // Its channel connects by itself.
                Address::Http(_) => true,
            }
        };
        soon.bound(connects).await.unwrap_or(false)
    }

    /// Keeps one connection at rest, by which an embedded server knows that somebody is there.
    pub(crate) async fn heartbeat(&self, deadline: Deadline) -> Result<()> {
        if let (Some(_), Some(local)) = (&self.embedded, &self.local) {
            drop(local.acquire(deadline).await?);
        }
        Ok(())
    }

    /// Nobody is there: starts the embedded server, or pauses before another attempt. `Err`: gives up.
    async fn find_server(
        &self,
        backoff: &mut Backoff,
        deadline: Deadline,
        error: impl FnOnce() -> Error,
    ) -> Result<()> {
        if let Some(embedded) = &self.embedded {
            embedded.ensure(deadline).await?;
            tokio::time::sleep(CONNECT_PAUSE_MIN).await; // it may end again at once: no busy loop
            return deadline.check();
        }
        let Some(pause) = backoff.next() else { return Err(error()) };
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// A pool that was well a moment ago may be restarting: worth a few attempts. A sick one gets one attempt
    /// a call.
    fn backoff(&self, deadline: Deadline) -> Backoff {
        let patient = self.breaker.lock().is_healthy();
        Backoff::new(patient.then(|| deadline.within(Duration::from_millis(self.config.connect_ms))))
    }
}

impl Call<'_> {
    /// Tells the breaker how the call ended, and hands its result on.
    pub(crate) fn end<T>(self, result: Result<T>) -> Result<T> {
        self.end_after(false, result)
    }

    /// The same for a call of many steps. If some of them succeeded, a deadline says that the call was long,
    /// not that the pool is sick.
    pub(crate) fn end_after<T>(mut self, progress: bool, result: Result<T>) -> Result<T> {
        let sick = match &result {
            Err(error) if error.kind == ErrorKind::Deadline => !progress,
            Err(error) => error.kind == ErrorKind::Unavailable,
            Ok(_) => false,
        };
        self.tell(if sick { Outcome::Sick } else { Outcome::Healthy });
        result
    }

    fn tell(&mut self, outcome: Outcome) {
        if let Some(pass) = self.pass.take() {
            self.link.breaker.lock().end(pass, outcome, Instant::now());
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.tell(Outcome::Unknown);
    }
}

#[cfg(test)]
mod tests;
