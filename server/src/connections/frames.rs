//! Memory for large HTTP/2 frames. Owns: a bound on those of all connections together, and waiting for a part of it. Must not
//! know: what a frame says.
//!
//! HTTP/2 keeps a frame until it is whole. So the bytes of a large one are read only once there is room for all of it; until
//! then they stay in the system's socket buffer, which is bounded too: their sender waits. What is shorter needs no room.

use super::peers::PeerUse;
use crate::limits::{
    BURST_BYTES_MIN, FRAME_UNCOUNTED_BYTES_MAX, FRAME_UNIT_BYTES, GRPC_FRAME_BYTES_MAX, GRPC_FRAMES_BYTES_MAX,
};
use metrics::{Gauge, describe_gauge, gauge};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// What all connections may have of them.
pub(crate) struct FrameMemory {
    room: Arc<Semaphore>,
    /// The most that was taken since the last look.
    high_bytes: AtomicUsize,
    gauge: Gauge,
}

/// Of the peer's share, and of the common room.
type FramePermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);
type FrameWait = Pin<Box<dyn Future<Output = Result<FramePermits, AcquireError>> + Send + Sync>>;

/// One connection's part.
pub(super) struct FrameRoom {
    frames: Arc<FrameMemory>,
    of_peer: Arc<PeerUse>,
    /// Of the frame that is arriving.
    held: Option<FramePermits>,
    waiting: Option<FrameWait>,
}

impl FrameMemory {
    /// None is arriving.
    pub(crate) fn new() -> Arc<FrameMemory> {
        describe_gauge!(
            "turnkv_frames_arriving_bytes",
            "Bytes of large frames that are arriving (on the local door, or in service)"
        );
        describe_gauge!("turnkv_frames_limit_bytes", "What all connections together may have of these");
        gauge!("turnkv_frames_limit_bytes", "door" => "grpc").set(GRPC_FRAMES_BYTES_MAX as f64);
        let room = Arc::new(Semaphore::new(GRPC_FRAMES_BYTES_MAX / FRAME_UNIT_BYTES));
        let gauge = gauge!("turnkv_frames_arriving_bytes", "door" => "grpc");
        Arc::new(FrameMemory { room, high_bytes: AtomicUsize::new(0), gauge })
    }

    /// Whether a burst has passed since the last look: much was taken, and little is now. Brings the gauge up to date.
    pub(super) fn burst_has_passed(&self) -> bool {
        let (now, least) = (self.taken_bytes(), BURST_BYTES_MIN as usize);
        self.gauge.set(now as f64);
        now < least && self.high_bytes.swap(now, Ordering::Relaxed) >= least
    }

    fn taken_bytes(&self) -> usize {
        GRPC_FRAMES_BYTES_MAX.saturating_sub(self.room.available_permits() * FRAME_UNIT_BYTES)
    }
}

impl FrameRoom {
    pub(super) fn new(frames: &Arc<FrameMemory>, of_peer: &Arc<PeerUse>) -> FrameRoom {
        FrameRoom { frames: Arc::clone(frames), of_peer: Arc::clone(of_peer), held: None, waiting: None }
    }

    /// Waits until there is room for the rest of the frame that is arriving, of so many bytes (0: none is). Ready with how much
    /// may be read now, where that is bounded.
    pub(super) fn poll(&mut self, frame_bytes: usize, context: &mut Context<'_>) -> Poll<Option<usize>> {
        if frame_bytes <= FRAME_UNCOUNTED_BYTES_MAX {
            (self.held, self.waiting) = (None, None);
            return Poll::Ready(Some(FRAME_UNCOUNTED_BYTES_MAX));
        }
        if self.held.is_none() {
            // Longer ones are refused as soon as their header is seen.
            let units = frame_bytes.min(GRPC_FRAME_BYTES_MAX as usize).div_ceil(FRAME_UNIT_BYTES) as u32;
            let waiting = self.waiting.get_or_insert_with(|| {
                let (own, all) = (Arc::clone(&self.of_peer.frames), Arc::clone(&self.frames.room));
                Box::pin(async move {
                    Ok((own.acquire_many_owned(units).await?, all.acquire_many_owned(units).await?))
                })
            });
            // It fails once the semaphore is closed, which it never is.
            self.held = ready!(waiting.as_mut().poll(context)).ok();
            self.waiting = None;
            self.frames.high_bytes.fetch_max(self.frames.taken_bytes(), Ordering::Relaxed);
        }
        Poll::Ready(None)
    }

    /// The frame that was arriving is whole: the next one needs room of its own.
    pub(super) fn ended(&mut self) {
        (self.held, self.waiting) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::{FrameMemory, FrameRoom};
    use crate::connections::Peer;
    use crate::connections::peers::{Peers, share_of};
    use crate::limits::{FRAME_UNCOUNTED_BYTES_MAX, GRPC_FRAME_BYTES_MAX, GRPC_FRAMES_BYTES_MAX};
    use std::task::{Context, Poll, Waker};

    const LARGE: usize = GRPC_FRAME_BYTES_MAX as usize;

    #[test]
    fn one_peer_has_its_share_only() {
        let (frames, mut all) = (FrameMemory::new(), Peers::default());
        let (greedy, other) = (all.of(Peer::User(1), 1), all.of(Peer::User(2), 1));
        let mut context = Context::from_waker(Waker::noop());
        let mut rooms: Vec<FrameRoom> =
            (0..GRPC_FRAMES_BYTES_MAX / LARGE).map(|_| FrameRoom::new(&frames, &greedy)).collect();
        let held = rooms.iter_mut().map(|room| room.poll(LARGE, &mut context)).filter(Poll::is_ready).count();
        assert_eq!(held, share_of(GRPC_FRAMES_BYTES_MAX as u64) as usize / LARGE);
        assert_eq!(FrameRoom::new(&frames, &other).poll(LARGE, &mut context), Poll::Ready(None));
    }

    #[test]
    fn large_frames_wait_for_room_and_small_ones_do_not() {
        let frames = FrameMemory::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut all = Peers::default();
        let peers = [all.of(Peer::User(1), 1), all.of(Peer::User(2), 1)];
        let mut rooms: Vec<FrameRoom> =
            (0..=GRPC_FRAMES_BYTES_MAX / LARGE).map(|at| FrameRoom::new(&frames, &peers[at % 2])).collect();
        let (last, others) = rooms.split_last_mut().unwrap();
        assert!(others.iter_mut().all(|room| room.poll(LARGE, &mut context) == Poll::Ready(None)));
        assert!(others.iter_mut().all(|room| room.poll(LARGE, &mut context) == Poll::Ready(None)), "held");
        assert_eq!(last.poll(LARGE, &mut context), Poll::Pending);
        let bounded = Poll::Ready(Some(FRAME_UNCOUNTED_BYTES_MAX));
        assert_eq!(FrameRoom::new(&frames, &peers[0]).poll(FRAME_UNCOUNTED_BYTES_MAX, &mut context), bounded);
        others[0].ended();
        assert_eq!(last.poll(LARGE, &mut context), Poll::Ready(None));
        assert!(!frames.burst_has_passed(), "it lasts");
        drop(rooms);
        assert_eq!(frames.taken_bytes(), 0);
        assert!(frames.burst_has_passed() && !frames.burst_has_passed(), "said once");
    }
}
