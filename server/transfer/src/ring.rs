//! Frames between two processes through memory that both have mapped: one ring a direction, one writer and one reader each.
//!
//! Owns: the rings' memory and layout, writing and reading whole frames, who sleeps. Must not know: sockets, waiting.
//!
//! The other process may write anything at any time into any of it. So each side keeps its own position to itself, reads every
//! word once, and checks what it read before it uses it: what does not fit is `InvalidData`, and the connection ends.
//!
//! ```text
//!   direction:  [ written | read | dozes | closed ]  [ header body.. | header body.. | free        ]
//!                 words in all, each on a cache line    entries in words of 8 bytes, around the end
//! ```
//! A reader that finds nothing for long dozes: it says so, looks once more, and waits on the socket. A writer that finds a
//! reader dozing takes the word back and rings on the socket. Both sides order "write, then look" by a fence, so one of the two
//! always sees the other.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;

use crate::frame::{Frame, FrameHeader};
use crate::huge::map_shared;
use crate::limits::{FRAME_HEADER_BYTES, RING_BODY_BYTES_MAX, RING_WORDS};
use crate::region::sealed_memfd;

/// Control words, 64 bytes apart: a side that looks at one does not disturb who writes another.
const WRITTEN: usize = 0;
const READ: usize = 8;
const DOZES: usize = 16;
const CLOSED: usize = 24;
const CONTROL_WORDS: usize = 32;

const WORD_BYTES: usize = size_of::<u64>();
const DIRECTION_WORDS: usize = CONTROL_WORDS + RING_WORDS;
const MEMORY_BYTES: usize = 2 * DIRECTION_WORDS * WORD_BYTES;

const _: () = assert!(RING_WORDS.is_power_of_two(), "positions go on counting over the end");
const _: () = assert!(FRAME_HEADER_BYTES == WORD_BYTES, "a header is the first word of an entry");
const _: () =
    assert!(words_of(RING_BODY_BYTES_MAX) <= RING_WORDS as u64, "the largest entry fits an empty ring");

/// One side's view of the two rings.
#[derive(Debug)]
pub(crate) struct Rings {
    base: NonNull<u8>,
    /// Where the direction that this side writes begins, in words; and the one that it reads.
    out: usize,
    into: usize,
    /// This side ended the connection: it reads nothing more, whatever the other one still writes.
    ended: AtomicBool,
}

// SAFETY: the memory is mapped until the drop, and is only touched as atomic words.
unsafe impl Send for Rings {}
// SAFETY: as above. The positions are the callers', who take turns.
unsafe impl Sync for Rings {}

impl Rings {
    /// The side that makes the memory, and the descriptor for the other side.
    ///
    /// # Errors
    /// The process or the system is out of descriptors, memory or mappings.
    pub(crate) fn create() -> io::Result<(Self, OwnedFd)> {
        let fd = sealed_memfd("turnkv-ring", MEMORY_BYTES)?;
        // Pages that cannot be had are an error now, not a signal at the first touch.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, MEMORY_BYTES as u64)?;
        let base = map_shared(&fd, MEMORY_BYTES, 1)?;
        Ok((Self { base, out: 0, into: DIRECTION_WORDS, ended: AtomicBool::new(false) }, fd))
    }

    /// The other side.
    ///
    /// # Errors
    /// `PermissionDenied`: the memory could be taken away under the mapping. `InvalidInput`: it is too small.
    pub(crate) fn open(fd: &OwnedFd) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        if !seals.contains(SealFlags::SHRINK) {
            let why = "the rings' memory is not sealed against shrinking: it is not used";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let bytes = rustix::fs::fstat(fd)?.st_size;
        if usize::try_from(bytes).unwrap_or(0) < MEMORY_BYTES {
            let why = format!("rings need {MEMORY_BYTES} bytes, {bytes} came");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let base = map_shared(fd, MEMORY_BYTES, 1)?;
        Ok(Self { base, out: DIRECTION_WORDS, into: 0, ended: AtomicBool::new(false) })
    }

    /// Writes a frame of at most [`RING_BODY_BYTES_MAX`] behind `written`, which is this side's own. False: no room now.
    ///
    /// # Errors
    /// `InvalidData`: the reader claims to have read what was never written.
    pub(crate) fn write(&self, written: &mut u64, header: FrameHeader, body: &[u8]) -> io::Result<bool> {
        debug_assert!(body.len() <= RING_BODY_BYTES_MAX && body.len() == header.body_bytes as usize);
        let read = self.word(self.out + READ).load(Ordering::Acquire);
        let unread = written.wrapping_sub(read);
        if unread > RING_WORDS as u64 {
            return Err(damaged("its reader's position"));
        }
        let entry = words_of(body.len());
        if RING_WORDS as u64 - unread < entry {
            return Ok(false);
        }
        self.put(*written, u64::from_le_bytes(header.encode()));
        let (words, rest) = body.as_chunks::<WORD_BYTES>();
        let mut at = *written + 1;
        for word in words {
            self.put(at, u64::from_le_bytes(*word));
            at += 1;
        }
        if !rest.is_empty() {
            let mut last = [0; WORD_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            self.put(at, u64::from_le_bytes(last));
        }
        *written += entry;
        self.word(self.out + WRITTEN).store(*written, Ordering::Release);
        Ok(true)
    }

    /// Reads the next frame behind `read`, which is this side's own, if one is there.
    ///
    /// # Errors
    /// `InvalidData`: what the writer left there is no frame. `UnexpectedEof`: this side has closed the rings.
    pub(crate) fn read(&self, read: &mut u64) -> io::Result<Option<Frame>> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "this side ended the connection"));
        }
        let written = self.word(self.into + WRITTEN).load(Ordering::Acquire);
        let there = written.wrapping_sub(*read);
        if there == 0 {
            return Ok(None);
        }
        if there > RING_WORDS as u64 {
            return Err(damaged("its writer's position"));
        }
        let header = FrameHeader::decode(self.get(*read).to_le_bytes())?;
        let bytes = header.body_bytes as usize;
        if bytes > RING_BODY_BYTES_MAX || words_of(bytes) > there {
            return Err(damaged("a frame's length"));
        }
        let entry = words_of(bytes);
        let mut body = Vec::with_capacity(entry as usize * WORD_BYTES);
        for at in *read + 1..*read + entry {
            body.extend_from_slice(&self.get(at).to_le_bytes());
        }
        body.truncate(bytes);
        *read += entry;
        self.word(self.into + READ).store(*read, Ordering::Release);
        Ok(Some(Frame { verb: header.verb, flags: header.flags, body, fd: None, _held: None }))
    }

    /// Says that this side is about to wait on the socket. It must look once more before it does.
    pub(crate) fn doze(&self) {
        self.word(self.into + DOZES).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// This side looks for itself again. True: the writer saw it dozing, and rings, or has rung.
    pub(crate) fn rouse(&self) -> bool {
        self.word(self.into + DOZES).swap(0, Ordering::Relaxed) == 0
    }

    /// After a write: whether the reader dozes and must be rung, which is then up to this side.
    pub(crate) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        let dozes = self.word(self.out + DOZES);
        dozes.load(Ordering::Relaxed) != 0 && dozes.swap(0, Ordering::Relaxed) != 0
    }

    /// Ends it: this side reads nothing more, the other one only what is there.
    pub(crate) fn close(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.word(self.into + CLOSED).store(1, Ordering::Relaxed);
        self.word(self.out + CLOSED).store(1, Ordering::Relaxed);
    }

    /// Whether a side said that it does not read any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.word(self.out + CLOSED).load(Ordering::Relaxed) != 0
    }

    fn put(&self, at: u64, word: u64) {
        self.word(self.out + place(at)).store(word, Ordering::Relaxed);
    }

    fn get(&self, at: u64) -> u64 {
        self.word(self.into + place(at)).load(Ordering::Relaxed)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < 2 * DIRECTION_WORDS, "both directions lie in the memory");
        // SAFETY: the index lies inside the mapping (asserted), which begins on a page, so the word is aligned; it lives as long
        // as `self`, and no side touches it but as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone: nothing that points into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), MEMORY_BYTES) };
        debug_assert!(unmapped.is_ok() || unmapped == Err(Errno::NOMEM), "what was mapped can be unmapped");
    }
}

/// Where a position's word lies in its direction.
fn place(at: u64) -> usize {
    CONTROL_WORDS + (at % RING_WORDS as u64) as usize
}

/// Words of a frame's entry.
const fn words_of(body_bytes: usize) -> u64 {
    1 + body_bytes.div_ceil(WORD_BYTES) as u64
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer damaged the shared ring: {what}"))
}

#[cfg(test)]
mod tests;
