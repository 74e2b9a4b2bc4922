//! The transfers of one call. Owns: cutting pages into parts, posting them within the shares of bytes in flight, repeating what
//! failed on another rail, and that the call does not end before all of them have. Must not know: leases, what is a good page.

use super::clients::{RemoteClient, Remotes};
use super::flights::Landed;
use super::lent::{Domain, LentSpan, Transfer};
use crate::limits::{
    LOCAL_LOOK, MANY_PAGES, REMOTE_CALL_FLIGHTS_MAX, REMOTE_POST_PAUSE, REMOTE_TRIES_MAX, STRIPE_BYTES,
    STRIPED_BYTES_MIN, WHOLE_BYTES_MAX,
};
use std::collections::VecDeque;
use std::ops::Range;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::Slot;
use turnkv_transfer::fabric::{Cause, Direction, Engine, Outcome, WhyUnposted};

/// Those of one call.
pub(in crate::engine) struct Transfers<'a> {
    remote: &'a Remotes,
    client: &'a RemoteClient,
    direction: Direction,
    /// Bytes of a span from which on it is moved in stripes.
    striped_bytes_min: u64,
    parts: Vec<Part>,
    /// Numbers of parts, in the order in which they are posted.
    due: VecDeque<usize>,
    flying: usize,
    /// A framed rail of the client has stalled.
    stalled: bool,
    pages: Vec<PageState>,
    tell: mpsc::Sender<Landed>,
    landed: mpsc::Receiver<Landed>,
}

/// What one operation moves.
struct Part {
    page: usize,
    slot: Slot,
    span: LentSpan,
    tries: u32,
    /// Over what it went last.
    over: Option<(Engine, Domain)>,
    /// A rail of this domain failed it.
    shunned: Option<Domain>,
    /// It waited for room, and was counted.
    waited: bool,
}

/// How far a page is.
struct PageState {
    /// What its owner calls it.
    position: u32,
    /// Numbers of its parts.
    parts: Range<usize>,
    /// Parts that have not landed.
    left: usize,
    failed: bool,
}

/// What the wait for a page came to.
pub(in crate::engine) enum Progress {
    /// Every part of this position has landed.
    Whole(u32),
    /// It cannot be moved.
    Failed(u32, Cause),
    /// Nothing for a while: time to look after what else may have happened.
    Quiet,
    /// Nothing is under way, or due.
    Idle,
}

impl<'a> Transfers<'a> {
    /// None yet, of a call that names so many pages.
    pub(in crate::engine) fn new(
        remote: &'a Remotes,
        client: &'a RemoteClient,
        direction: Direction,
        pages: usize,
    ) -> Transfers<'a> {
        let striped_bytes_min = if pages < MANY_PAGES { STRIPED_BYTES_MIN } else { WHOLE_BYTES_MAX + 1 };
        let (tell, landed) = mpsc::channel(REMOTE_CALL_FLIGHTS_MAX);
        Transfers {
            remote,
            client,
            direction,
            striped_bytes_min,
            parts: Vec::new(),
            due: VecDeque::new(),
            flying: 0,
            stalled: false,
            pages: Vec::new(),
            tell,
            landed,
        }
    }

    /// Moves a position's slot from or to these spans of the client's memory, which are as long together.
    pub(in crate::engine) fn add(
        &mut self,
        position: u32,
        slot: &Slot,
        spans: &[LentSpan],
    ) -> Result<(), Error> {
        check_spans(position, slot, spans)?;
        let page = self.pages.len();
        let first = self.parts.len();
        let mut offset = 0;
        for span in spans {
            for part in pieces(span, self.striped_bytes_min) {
                let bytes = part.bytes() as usize;
                let slot = slot.region().slot(slot.offset() + offset, bytes);
                let slot =
                    slot.ok_or_else(|| Error::new(ErrorKind::Internal, "a part outside of its slot"))?;
                offset += bytes;
                let (tries, over, shunned, waited) = (0, None, None, false);
                self.parts.push(Part { page, slot, span: part, tries, over, shunned, waited });
            }
        }
        let parts = first..self.parts.len();
        self.due.extend(parts.clone());
        self.pages.push(PageState { position, left: parts.len(), parts, failed: false });
        Ok(())
    }

    /// Moves a position that was whole once more, unless its client has stalled.
    pub(in crate::engine) fn repeat(&mut self, position: u32) {
        if self.stalled {
            return;
        }
        let Some(page) = self.pages.iter_mut().find(|page| page.position == position) else { return };
        page.left = page.parts.len();
        self.remote.series.repeated.increment(page.left as u64);
        self.due.extend(page.parts.clone());
    }

    /// Whether anything is under way or due.
    pub(in crate::engine) fn is_idle(&self) -> bool {
        self.flying == 0 && self.due.is_empty()
    }

    /// Posts what may be posted, and waits for the next position to be whole. Dropping the future loses nothing.
    pub(in crate::engine) async fn next(&mut self) -> Progress {
        loop {
            if let Some(failed) = self.post_due().await {
                return failed;
            }
            if self.flying == 0 {
                return if self.due.is_empty() { Progress::Idle } else { Progress::Quiet };
            }
            match timeout(LOCAL_LOOK, self.landed.recv()).await {
                Ok(Some(landed)) => {
                    if let Some(progress) = self.land(landed) {
                        return progress;
                    }
                }
                Ok(None) | Err(_) => return Progress::Quiet,
            }
        }
    }

    /// Posts nothing more, and waits until nothing touches a slot of this call any more: every posted transfer has completed.
    /// That ends, because a rail that is too slow ends. `quiet`: nothing has landed for a while.
    pub(in crate::engine) async fn end(mut self, quiet: &mut dyn FnMut()) {
        self.due.clear();
        while self.flying > 0 {
            match timeout(LOCAL_LOOK, self.landed.recv()).await {
                Ok(Some(_)) => self.flying -= 1,
                Ok(None) | Err(_) => quiet(),
            }
        }
    }

    /// Posts in order, as far as rails and shares have room. Says which position fails because there is no rail any more.
    async fn post_due(&mut self) -> Option<Progress> {
        while let Some(number) = self.due.front().copied() {
            if self.flying >= REMOTE_CALL_FLIGHTS_MAX {
                return None;
            }
            if self.pages[self.parts[number].page].failed {
                self.due.pop_front();
                continue;
            }
            let bytes = u64::from(self.parts[number].span.bytes());
            let shares = &self.client.inflight;
            let part = match shares.try_take(bytes) {
                Some(part) => part,
                None => {
                    if !std::mem::replace(&mut self.parts[number].waited, true) {
                        self.remote.series.waits.increment(1);
                    }
                    if self.flying > 0 {
                        return None; // what is under way makes room
                    }
                    let Ok(Ok(part)) = timeout(LOCAL_LOOK, shares.take(bytes)).await else { return None };
                    part
                }
            };
            let op = self.remote.flights.begin(number, self.tell.clone(), part);
            let Part { slot, span, shunned, .. } = &self.parts[number];
            let transfer = Transfer { direction: self.direction, slot, span, op };
            match self.client.rails.post(&transfer, *shunned) {
                Ok(over) => {
                    self.parts[number].over = Some(over);
                    self.due.pop_front();
                    self.flying += 1;
                }
                Err(why) => {
                    self.remote.flights.forget(op);
                    match why {
                        WhyUnposted::Full if self.flying > 0 => return None,
                        WhyUnposted::Full => {
                            sleep(REMOTE_POST_PAUSE).await;
                            return None;
                        }
                        WhyUnposted::Dead => {
                            self.due.pop_front();
                            let page = self.parts[number].page;
                            self.remote.series.failed(&Cause::PeerGone);
                            return Some(self.fail(page, Cause::PeerGone));
                        }
                    }
                }
            }
        }
        None
    }

    fn land(&mut self, landed: Landed) -> Option<Progress> {
        self.flying -= 1;
        let Landed { part: number, outcome } = landed;
        let part = &mut self.parts[number];
        let page = part.page;
        match outcome {
            Outcome::Done => {
                let engine = part.over.map_or(Engine::Framed, |(engine, _)| engine);
                self.remote.series.moved(engine, self.direction, u64::from(part.span.bytes()));
            }
            Outcome::Failed(cause) => {
                self.remote.series.failed(&cause);
                part.tries += 1;
                part.shunned = part.over.map(|(_, domain)| domain);
                let refused = matches!(cause, Cause::Refused | Cause::Protocol(_));
                let framed = part.over.is_some_and(|(engine, _)| engine == Engine::Framed);
                let tried = refused || part.tries >= REMOTE_TRIES_MAX;
                if framed && cause == Cause::Stalled {
                    // The peer has stopped, not its network: each other rail would take as long to tell.
                    self.stalled = true;
                    self.due.clear();
                }
                if self.pages[page].failed || tried || self.stalled {
                    return Some(self.fail(page, cause));
                }
                self.remote.series.repeated.increment(1);
                self.due.push_front(number);
                return None;
            }
        }
        let state = &mut self.pages[page];
        state.left -= 1;
        (state.left == 0 && !state.failed).then_some(Progress::Whole(state.position))
    }

    /// What is due of the page is passed over when its turn comes.
    fn fail(&mut self, page: usize, cause: Cause) -> Progress {
        let state = &mut self.pages[page];
        state.failed = true;
        Progress::Failed(state.position, cause)
    }
}

/// Whether spans are as long together as the page that they are for.
pub(in crate::engine) fn check_spans(position: u32, slot: &Slot, spans: &[LentSpan]) -> Result<(), Error> {
    let bytes: u64 = spans.iter().map(|span| u64::from(span.bytes())).sum();
    if bytes == slot.len() as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("position {position} has {} bytes, its spans have {bytes}", slot.len())))
}

/// A span as the operations that move it: large ones in stripes, which go over all rails.
fn pieces(span: &LentSpan, striped_bytes_min: u64) -> impl Iterator<Item = LentSpan> {
    let bytes = span.bytes();
    let piece = if u64::from(bytes) < striped_bytes_min { bytes } else { STRIPE_BYTES };
    (0..bytes).step_by(piece.max(1) as usize).filter_map(move |at| span.part(at, piece.min(bytes - at)))
}
