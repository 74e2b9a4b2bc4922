//! Running a copy plan. Owns: how runs become few large, checksummed copies. Must not know: how plans are
//! made.
//!
//! Both directions walk the slot in its order, chunk by chunk, so that every slot byte is checksummed once,
//! in order, while it is in the L1 cache:
//!
//! ```text
//!   gather:   short runs -> stage (one chunk, L1) -> checksum, streaming copy to the slot;   long runs straight to the slot
//!   scatter:  next chunk of the slot -> stage, checksum -> the pieces of runs in it -> tensors
//! ```
//!
//! The slot may be written by others meanwhile, so each of its bytes is loaded once: what the tensors get is what
//! the checksum is of.

use crate::checksum::Checksum;
use crate::copy::{Stage, StreamingCopy};
use crate::limits::{CHUNK_BYTES, STREAMING_RUN_BYTES_MIN};
use crate::plan::{CopyPlan, Run};

impl CopyPlan {
    /// Fills the slot at `slot` from the plan's tensors, with zeros between the runs; the checksum of the
    /// slot.
    ///
    /// # Safety
    /// `slot` is writable for `slot_bytes` and Rust code does not refer to it; the promise of
    /// `TensorView::new` holds.
    pub(crate) unsafe fn gather_into(&self, slot: *mut u8) -> u64 {
        let mut stage = Stage::new();
        let mut writer = Writer {
            slot,
            written: 0,
            stage: &mut stage,
            staged: 0,
            stream: StreamingCopy::new(),
            sum: Checksum::new(),
        };
        for run in self.runs() {
            // SAFETY: runs come in slot order and lie inside the slot; a run's memory is readable by the
            // views' promise.
            unsafe {
                writer.put_zeros(run.slot_offset - writer.position());
                writer.put(run.memory, run.bytes);
            }
        }
        // SAFETY: as above, up to the end of the slot.
        unsafe {
            writer.put_zeros(self.slot_bytes() - writer.position());
            writer.flush();
        }
        writer.stream.finish();
        writer.sum.finish()
    }

    /// Spreads the slot at `slot` over the plan's tensors; the checksum of the slot.
    ///
    /// # Safety
    /// `slot` is readable for `slot_bytes`; the promise of `TensorView::new` holds.
    pub(crate) unsafe fn scatter_from(&self, slot: *const u8) -> u64 {
        let slot_bytes = self.slot_bytes();
        let mut reader = Reader {
            slot,
            slot_bytes,
            checked: 0,
            stage: Stage::new(),
            stage_from: 0,
            stream: StreamingCopy::new(),
            sum: Checksum::new(),
        };
        for run in self.runs() {
            // SAFETY: runs come in slot order and lie inside the slot; a run's memory is writable by the
            // views' promise.
            unsafe { reader.get(run) };
        }
        while reader.checked < slot_bytes {
            // SAFETY: the slot is readable to its end.
            unsafe { reader.check_next() };
        }
        reader.stream.finish();
        reader.sum.finish()
    }
}

/// Writes a slot from its start to its end.
struct Writer<'a> {
    slot: *mut u8,
    /// Bytes of the slot that are written and checksummed.
    written: usize,
    stage: &'a mut Stage,
    /// Bytes in the stage, which follow those written.
    staged: usize,
    stream: StreamingCopy,
    sum: Checksum,
}

impl Writer<'_> {
    fn position(&self) -> usize {
        self.written + self.staged
    }

    /// # Safety
    /// `source` is readable for `bytes`, which fit the rest of the slot.
    #[inline]
    unsafe fn put(&mut self, mut source: *const u8, mut bytes: usize) {
        while bytes > 0 {
            let whole = bytes / CHUNK_BYTES * CHUNK_BYTES;
            if self.staged == 0 && whole > 0 {
                // SAFETY: whole chunks of the source are left, and the slot has room for them.
                unsafe {
                    self.stream.copy_summed(source, self.slot.add(self.written), whole, &mut self.sum);
                    source = source.add(whole);
                }
                self.written += whole;
                bytes -= whole;
                continue;
            }
            let piece = bytes.min(CHUNK_BYTES - self.staged);
            // SAFETY: `staged + piece` is at most the stage; the piece is at most what is left of the source.
            unsafe {
                let target = self.stage.bytes.as_mut_ptr().add(self.staged);
                std::ptr::copy_nonoverlapping(source, target, piece);
                source = source.add(piece);
            }
            bytes -= piece;
            // SAFETY: the staged bytes fit the rest of the slot: the caller's promise.
            unsafe { self.staged_more(piece) };
        }
    }

    /// # Safety
    /// `bytes` fit the rest of the slot.
    #[inline]
    unsafe fn put_zeros(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let piece = bytes.min(CHUNK_BYTES - self.staged);
            self.stage.bytes[self.staged..self.staged + piece].fill(0);
            bytes -= piece;
            // SAFETY: as in `put`.
            unsafe { self.staged_more(piece) };
        }
    }

    /// # Safety
    /// The stage holds `piece` more bytes, and all of it fits the rest of the slot.
    #[inline]
    unsafe fn staged_more(&mut self, piece: usize) {
        self.staged += piece;
        if self.staged == CHUNK_BYTES {
            // SAFETY: the caller's promise.
            unsafe { self.flush() };
        }
    }

    /// # Safety
    /// The staged bytes fit the rest of the slot.
    unsafe fn flush(&mut self) {
        let staged = &self.stage.bytes[..self.staged];
        // SAFETY: the slot has room: the caller's promise.
        unsafe {
            self.stream.copy_summed(
                staged.as_ptr(),
                self.slot.add(self.written),
                staged.len(),
                &mut self.sum,
            );
        }
        self.written += self.staged;
        self.staged = 0;
    }
}

/// Reads a slot from its start to its end.
struct Reader {
    slot: *const u8,
    slot_bytes: usize,
    /// Bytes of the slot that are checksummed: at most a chunk ahead of what is copied.
    checked: usize,
    /// The chunk checksummed last, from this place of the slot on.
    stage: Stage,
    stage_from: usize,
    stream: StreamingCopy,
    sum: Checksum,
}

impl Reader {
    /// # Safety
    /// The run lies inside the slot, not before the one got last; its memory is writable.
    #[inline]
    unsafe fn get(&mut self, run: Run) {
        let mut done = 0;
        while done < run.bytes {
            let at = run.slot_offset + done;
            while self.checked <= at {
                // SAFETY: `checked <= at < slot_bytes`.
                unsafe { self.check_next() };
            }
            let piece = (run.bytes - done).min(self.checked - at);
            let source = self.stage.bytes[at - self.stage_from..][..piece].as_ptr();
            // SAFETY: the piece lies inside the stage and inside the run; tensors lie in neither.
            unsafe {
                let target = run.memory.add(done);
                if piece >= STREAMING_RUN_BYTES_MIN {
                    self.stream.copy(source, target, piece);
                } else {
                    std::ptr::copy_nonoverlapping(source, target, piece);
                }
            }
            done += piece;
        }
    }

    /// # Safety
    /// `checked < slot_bytes`.
    unsafe fn check_next(&mut self) {
        let piece = CHUNK_BYTES.min(self.slot_bytes - self.checked);
        // SAFETY: the piece lies inside the slot, which is readable.
        unsafe { self.stage.take(self.slot.add(self.checked), piece, &mut self.sum) };
        self.stage_from = self.checked;
        self.checked += piece;
    }
}

#[cfg(test)]
mod tests;
