//! Where subscribers connect. Owns: the listening sockets, and how many may be there. Must not know: what they are told.

use super::telling::Events;
use super::zmtp::WireError;
use super::{replay, subscriber};
use crate::limits::{EVENTS_ACCEPT_PAUSE, EVENTS_REPLAYS_MAX, EVENTS_SUBSCRIBERS_MAX};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The sockets, open.
pub(crate) struct EventDoors {
    events: Arc<Events>,
    publish: TcpListener,
    replay: Option<TcpListener>,
}

impl EventDoors {
    /// Opens them.
    ///
    /// # Errors
    /// An address cannot be had: which, and why.
    pub(crate) async fn open(events: &Arc<Events>) -> Result<EventDoors, (SocketAddr, std::io::Error)> {
        let bind = async |address| TcpListener::bind(address).await.map_err(|error| (address, error));
        let publish = bind(events.config.publish).await?;
        let replay = match events.config.replay {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        Ok(EventDoors { events: Arc::clone(events), publish, replay })
    }

    /// Serves whoever connects, for ever.
    pub(crate) async fn run(self) -> Result<(), Infallible> {
        let EventDoors { events, publish, replay } = self;
        let replays = async {
            match replay {
                Some(listener) => serve(&listener, EVENTS_REPLAYS_MAX, &events, replay::serve).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(serve(&publish, EVENTS_SUBSCRIBERS_MAX, &events, subscriber::serve), replays);
        Ok(())
    }
}

/// Gives each connection a task of its own, up to so many; one more is ended at once.
async fn serve<F>(
    listener: &TcpListener,
    most: usize,
    events: &Arc<Events>,
    one: impl Fn(Arc<Events>, TcpStream) -> F,
) where
    F: Future<Output = Result<(), WireError>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(most));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "an event door takes no connection: tried again");
                tokio::time::sleep(EVENTS_ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            events.counts.refused();
            continue;
        };
        let (served, events) = (one(Arc::clone(events), stream), Arc::clone(events));
        tokio::spawn(async move {
            events.counts.came();
            if let Err(error) = served.await {
                tracing::debug!(%from, %error, "a connection at an event door ended");
            }
            events.counts.went();
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests;
