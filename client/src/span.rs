//! Pages mapped where the caller wants them: slots reserved to be written in place, and pages read in place.
//! Owns: [`PageSpan`], which page is where in it and under which lease. Must not know: what a page's bytes
//! mean.
//!
//! A span has rows of places, one page a place. A page is cut into equal pieces (K and V of each layer, say);
//! piece 0 of all places of a row lie side by side, then piece 0 of the next row, and after the rows piece 1.
//! So K of one layer over many pages is one array, wherever the slots are.
//!
//! ```text
//!            reserve                       commit
//!   empty -------------> writable --------------------> read-only
//!     ^ \------------------ hold ------------------------>/  |
//!     |                     ^------------ own ------------/   |
//!     \------ vacate --------------------------------------- /
//! ```
//! A place that is empty is private memory of this process. Everything mapped is under a held lease (see
//! [`LocalPool::hold`]): it stays as it is for as long as this process lives and the place is not vacated,
//! whatever becomes of the server.

use crate::error::{Error, ErrorKind, Result};
use crate::local::{LocalPool, Server};
use crate::namespace::Namespace;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnkv_transfer::{Page, PageMut, Slot, Span};

mod commit;
mod hold;
mod reserve;

pub use commit::CommitOptions;

/// See the module text.
#[derive(Debug)]
pub struct PageSpan {
    namespace: Namespace,
    memory: Arc<Span>,
    rows: usize,
    places: usize,
    pieces: usize,
    /// What is mapped where: row after row.
    table: Vec<Option<Mapped>>,
    /// Reserved slots that are mapped nowhere.
    spare: Vec<Mapped>,
    /// The lease that reservations are added to.
    reserved: Option<(Server, u64)>,
    /// Positions held under each lease; one without any is released.
    leases: BTreeMap<(u64, u64), usize>,
    counts: SpanCounts,
}

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Private memory.
    Empty,
    /// A reserved slot: it can be written, and committed in place.
    Writable,
    /// A page, for reading.
    ReadOnly,
    /// A slot of a server process that is gone, and that the one after it did not take over. Its bytes are good, but it can only be
    /// copied.
    Orphan,
}

/// What a span did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Slots reserved and mapped to be written.
    pub reserved: u64,
    /// Pages mapped for reading.
    pub held: u64,
    /// Pages found that could not be mapped as well, and were copied.
    pub copied: u64,
    /// Pages committed where they were.
    pub committed: u64,
    /// Pages copied into a slot of their own, to be written on.
    pub owned: u64,
}

/// One slot under a held lease.
#[derive(Debug)]
struct Mapped {
    access: Access,
    server: Server,
    lease: u64,
    position: u32,
}

/// What this process may do with a slot.
#[derive(Debug)]
enum Access {
    /// It is reserved: write it.
    Write(PageMut),
    /// It is a page of the pool's: read it.
    Read(Page),
}

impl Mapped {
    fn slot(&self) -> &Slot {
        match &self.access {
            Access::Write(page) => page.slot(),
            Access::Read(page) => page.slot(),
        }
    }

    fn is_writable(&self) -> bool {
        matches!(self.access, Access::Write(_))
    }

    /// It is the pool's page now.
    fn sealed(self) -> Mapped {
        let access = match self.access {
            Access::Write(page) => Access::Read(page.seal()),
            read @ Access::Read(_) => read,
        };
        Mapped { access, ..self }
    }
}

impl PageSpan {
    /// Room for `rows` times `places` pages, each in `pieces` pieces. Asks the server nothing.
    pub fn new(namespace: &Namespace, rows: usize, places: usize, pieces: usize) -> Result<PageSpan> {
        let bytes = namespace.page_bytes();
        let (pages, whole) = (rows.checked_mul(places), pieces > 0 && bytes.is_multiple_of(pieces.max(1)));
        let (Some(pages), true) = (pages, whole) else {
            return Err(Error::invalid(format!("pages of {bytes} bytes do not have {pieces} equal pieces")));
        };
        let all = pages.checked_mul(pieces).ok_or_else(|| Error::invalid("a span larger than memory"))?;
        let memory = Span::reserve(bytes / pieces, all).map_err(|error| unmappable(&error))?;
        Ok(PageSpan {
            namespace: namespace.clone(),
            memory: Arc::new(memory),
            rows,
            places,
            pieces,
            table: std::iter::repeat_with(|| None).take(pages).collect(),
            spare: Vec::new(),
            reserved: None,
            leases: BTreeMap::new(),
            counts: SpanCounts::default(),
        })
    }

    /// The memory itself: it must outlive whoever uses its addresses.
    pub fn memory(&self) -> &Arc<Span> {
        &self.memory
    }

    /// Bytes of one piece.
    pub fn piece_bytes(&self) -> usize {
        self.namespace.page_bytes() / self.pieces
    }

    /// What is at a place.
    pub fn standing(&self, row: usize, place: usize) -> Standing {
        let at = self.find(row, place).ok();
        let Some(mapped) = at.and_then(|at| self.table[at].as_ref()) else { return Standing::Empty };
        match mapped {
            mapped if !self.is_held(mapped) => Standing::Orphan,
            mapped if mapped.is_writable() => Standing::Writable,
            _ => Standing::ReadOnly,
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> SpanCounts {
        self.counts
    }

    /// Places mapped now, and reserved slots mapped nowhere.
    pub fn mapped(&self) -> (usize, usize) {
        (self.table.iter().flatten().count(), self.spare.len())
    }

    /// Whether the server said that a lease of something mapped here is over: then nothing of it is to be
    /// trusted.
    pub fn is_lost(&self) -> bool {
        let Some(pool) = self.pool().filter(|pool| pool.has_lost()) else { return false };
        self.table.iter().flatten().any(|mapped| pool.is_lost(&mapped.server, mapped.lease))
    }

    /// Maps what is at `count` places from `from` on at the places from `to` on instead. Nothing is copied,
    /// nor lost: what was at those places is vacated.
    pub fn shift(&mut self, row: usize, from: usize, to: usize, count: usize) -> Result<()> {
        self.find_all(row, from, count)?;
        self.find_all(row, to, count)?;
        let mut taken = Vec::with_capacity(count);
        for place in from..from + count {
            let at = self.find(row, place)?;
            taken.push(self.table[at].take());
        }
        for place in to..to + count {
            self.vacate(row, place, 1)?;
        }
        for (at, mapped) in taken.into_iter().enumerate() {
            if let Some(mapped) = mapped {
                self.map(row, to + at, mapped)?;
            }
        }
        for place in (from..from + count).filter(|place| !(to..to + count).contains(place)) {
            self.clear(row, place, 1)?;
        }
        Ok(())
    }

    /// Puts private memory at `count` places. Reserved slots are kept for the next reservation, pages given
    /// back.
    pub fn vacate(&mut self, row: usize, place: usize, count: usize) -> Result<()> {
        self.find_all(row, place, count)?;
        let mut released: Vec<Mapped> = Vec::new();
        for place in place..place + count {
            let at = self.find(row, place)?;
            let Some(mapped) = self.table[at].take() else { continue };
            if mapped.is_writable() && self.is_held(&mapped) {
                self.spare.push(mapped);
            } else {
                released.push(mapped);
            }
        }
        self.clear(row, place, count)?;
        self.release(released);
        Ok(())
    }

    /// Gives back reserved slots that are mapped nowhere.
    pub fn release_spare(&mut self) {
        let spare = std::mem::take(&mut self.spare);
        self.release(spare);
    }

    /// Vacates everything and gives back every lease.
    pub fn release_all(&mut self) -> Result<()> {
        for row in 0..self.rows {
            self.vacate(row, 0, self.places)?;
        }
        self.release_spare();
        Ok(())
    }

    /// Maps every piece of a slot at a place. On failure nothing is there, and the slot is given back.
    fn map(&mut self, row: usize, place: usize, mapped: Mapped) -> Result<()> {
        let at = self.find(row, place)?;
        let piece_bytes = self.piece_bytes();
        for piece in 0..self.pieces {
            let number = self.number(piece, row, place);
            let result = self.memory.map(number, mapped.slot(), piece * piece_bytes, mapped.is_writable());
            if let Err(error) = result {
                self.clear(row, place, 1)?;
                self.release(vec![mapped]);
                return Err(unmappable(&error));
            }
        }
        self.table[at] = Some(mapped);
        Ok(())
    }

    fn clear(&self, row: usize, place: usize, count: usize) -> Result<()> {
        (0..self.pieces).try_for_each(|piece| {
            let number = self.number(piece, row, place);
            self.memory.clear(number, count).map_err(|error| unmappable(&error))
        })
    }

    /// Ends the holds on slots that are mapped nowhere any more.
    fn release(&mut self, mapped: Vec<Mapped>) {
        let Some(pool) = self.pool().cloned() else { return };
        let mut by_lease: BTreeMap<(u64, u64), (Server, Vec<u32>)> = BTreeMap::new();
        for Mapped { server, lease, position, .. } in mapped {
            let entry = by_lease.entry((server.instance, lease)).or_insert_with(|| (server, Vec::new()));
            entry.1.push(position);
        }
        for (key, (server, mut positions)) in by_lease {
            let left = self.leases.get_mut(&key).map_or(0, |left| {
                *left -= positions.len().min(*left);
                *left
            });
            if left == 0 {
                self.leases.remove(&key);
                positions.clear(); // all of it
                self.reserved.take_if(|(server, lease)| (server.instance, *lease) == key);
            }
            positions.sort_unstable();
            pool.release(&server, key.1, &positions, Vec::new());
        }
    }

    fn number(&self, piece: usize, row: usize, place: usize) -> usize {
        (piece * self.rows + row) * self.places + place
    }

    /// Where in the table a place is.
    fn find(&self, row: usize, place: usize) -> Result<usize> {
        if row >= self.rows || place >= self.places {
            let text = format!("place {place} of row {row}: there are {} of {}", self.places, self.rows);
            return Err(Error::invalid(text));
        }
        Ok(row * self.places + place)
    }

    /// Checks that so many places are there, before anything is taken from one of them.
    fn find_all(&self, row: usize, place: usize, count: usize) -> Result<()> {
        match count.checked_sub(1) {
            Some(more) => self.find(row, place.saturating_add(more)).map(drop),
            None => Ok(()),
        }
    }

    fn pool(&self) -> Option<&Arc<LocalPool>> {
        self.namespace.link.local.as_ref()
    }

    fn is_held(&self, mapped: &Mapped) -> bool {
        self.pool().is_some_and(|pool| pool.is_held(&mapped.server, mapped.lease, mapped.position))
    }
}

impl Drop for PageSpan {
    fn drop(&mut self) {
        // The memory may live on under somebody's view of it, but then it must not show slots that are not
        // ours any more.
        if let Err(error) = self.release_all() {
            tracing::error!(%error, "a span's pages stay leased until this process ends");
        }
    }
}

fn unmappable(error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::OutOfMemory => Error::new(ErrorKind::Limit, error.to_string()),
        std::io::ErrorKind::InvalidInput => {
            Error::invalid(format!("the pool's memory cannot be mapped in pieces: {error}"))
        }
        _ => Error::new(ErrorKind::Internal, format!("mapping pages: {error}")),
    }
}
