//! GPU memory as the other end of offloads and reloads. Owns: what both have in common: waiting for the engine, copies that
//! outlive their callers. Must not know: which way pages go.

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::framed::StagedUse;
use crate::local::Lent;
use turnkv_transfer::device::{Device, DeviceError, DeviceErrorKind, Flight, Landed, Mark, Stream};

/// In what order a reload comes among an engine's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceOrder {
    /// Nothing is written before what this stream was given so far is done.
    pub after: Option<Stream>,
    /// Greater than 1: pages come in so many parts, the first part of all pages first, so that an engine can begin with its
    /// first layer while the others are on their way. All pages are leased before the first is copied. 0 and 1: page by page.
    pub layers: usize,
}

/// The mark of an engine's stream, made in the call itself.
pub(crate) type Marked = Option<std::result::Result<Mark, DeviceError>>;

pub(crate) fn mark(device: &Device, after: Option<Stream>) -> Marked {
    after.map(|stream| device.mark(stream))
}

/// Waits for a device, no longer than until the deadline. A deadline that passes says nothing about the pool, nor that copies
/// under way are over.
pub(crate) async fn bound<T>(
    deadline: Deadline,
    waiting: impl Future<Output = std::result::Result<T, DeviceError>>,
) -> Result<T> {
    match deadline.bound(waiting).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(late()),
    }
}

/// Waits for copies. At the deadline they are taken back, and those that had begun are waited for beyond it: memory of which an
/// error was told is another request's at once.
async fn landed(deadline: Deadline, flight: &Flight) -> Result<Landed> {
    match deadline.bound(flight.landed()).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            flight.cancel();
            match flight.landed().await {
                Err(error) if error.kind == DeviceErrorKind::Cancelled => Err(late()),
                done => Ok(done?),
            }
        }
    }
}

fn late() -> Error {
    Error::new(ErrorKind::Device, "the device was not done by the deadline")
}

/// What a device fills, for somebody who may leave before it has.
pub(crate) trait FillTarget: Send + 'static {
    /// Nobody can say whether the device still writes to it, or will.
    fn lose(&mut self);
}

/// The connection whose write lease is on granted slots.
impl FillTarget for Lent {
    fn lose(&mut self) {
        self.leave_writing(); // the server's quarantine has it
    }
}

/// Memory that is lent to a server.
impl FillTarget for StagedUse {
    fn lose(&mut self) {
        std::mem::forget(self.clone());
    }
}

/// Copies under way, and what they fill. However this ends, that ends only when nobody writes to it any more; if nobody can say whether
/// the device still does, it never ends before this process.
#[derive(Debug)]
pub(crate) struct Filling<F: FillTarget> {
    parts: Option<(Flight, F)>,
}

impl<F: FillTarget> Filling<F> {
    pub(crate) fn new(flight: Flight, filled: F) -> Filling<F> {
        Filling { parts: Some((flight, filled)) }
    }

    /// Waits until it is filled. An error comes when nothing is read any more.
    pub(crate) async fn landed(mut self, deadline: Deadline) -> Result<(F, Landed)> {
        let Some((flight, _)) = &self.parts else { return Err(Error::invalid("nothing is under way")) };
        let landed = landed(deadline, flight).await?;
        match self.parts.take() {
            Some((_, filled)) => Ok((filled, landed)),
            None => Err(Error::invalid("nothing is under way")),
        }
    }
}

impl<F: FillTarget> Drop for Filling<F> {
    fn drop(&mut self) {
        let Some((flight, mut filled)) = self.parts.take() else { return };
        flight.cancel();
        flight.abandon(Box::new(move |safe| {
            if !safe {
                filled.lose();
            }
            drop(filled);
        }));
    }
}

/// Pages that travel in gRPC's messages are made by a CPU.
pub(crate) fn no_frames() -> Error {
    Error::invalid(
        "device memory needs a server that speaks frames: connect by its Unix socket on this host, or by a tcp:// or \
         tls:// address of another one with data_plane auto or framed; or copy through host memory",
    )
}
