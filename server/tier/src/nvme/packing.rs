//! Making pages smaller before they have a place. Owns: the queue of pages to be packed, the threads that do it. Must not know: the
//! log's rules, how bytes reach the device.
//!
//! A page is copied out of its slot piece by piece, through a core's cache, and what was copied is what is checked: a process that
//! still maps the slot and writes there is found out before anything of it is on the device.

use super::bounce::{Bounce, BounceBuffers};
use super::choice::{Choices, Pack};
use super::config::Packing;
use super::core::{Core, Pending, PoisonOnPanic};
use super::format::padded;
use super::threads::{finishers, packers};
use crate::limits::{BLOCK, BUSY_SHARE};
use crate::tier::ExtentMeta;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use turnkv_codec::{Codec, Encoder, Path, Values};
use turnkv_transfer::{Checksum, Slot};

/// A page that was made smaller.
pub(crate) struct Packed {
    pub(crate) bounce: Bounce,
    pub(crate) stored_bytes: u32,
}

/// What became of a page.
pub(crate) enum Outcome {
    Packed(Packed),
    /// It is stored as it is.
    AsItIs,
    /// The bytes of the source are not those of its checksum.
    Changed,
}

/// The queue, and what the threads share.
pub(crate) struct Packer {
    is_off: bool,
    choices: Mutex<Choices>,
    bounces: Option<Arc<BounceBuffers>>,
    queue: Mutex<PackQueue>,
    wake: Condvar,
    /// Without threads each page is packed where it is handed over.
    inline: bool,
    encoders: Mutex<Vec<Encoder>>,
}

/// Bounded by admission.
#[derive(Default)]
struct PackQueue {
    pages: VecDeque<Pending>,
    stop: bool,
}

impl Packer {
    /// Packs as it is told, in this memory; without any it packs nothing.
    pub(crate) fn new(packing: Packing, bounces: Option<Arc<BounceBuffers>>, inline: bool) -> Packer {
        Packer {
            is_off: packing == Packing::Off || bounces.is_none(),
            choices: Mutex::new(Choices::new(packing)),
            bounces,
            queue: Mutex::default(),
            wake: Condvar::new(),
            inline,
            encoders: Mutex::default(),
        }
    }

    /// The memory that packed bytes go through.
    pub(crate) fn bounces(&self) -> Option<&Arc<BounceBuffers>> {
        self.bounces.as_ref()
    }

    /// Are pages packed at all?
    pub(crate) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Hands a page to the threads; gives it back where there are none.
    pub(crate) fn push(&self, pending: Pending) -> Option<Pending> {
        if self.inline {
            return Some(pending);
        }
        self.queue.lock().pages.push_back(pending);
        self.wake.notify_one();
        None
    }

    /// The next page to be packed; none when the threads are to end.
    fn pop(&self) -> Option<Pending> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(pending) = queue.pages.pop_front() {
                return Some(pending);
            }
            if queue.stop {
                return None;
            }
            self.wake.wait(&mut queue);
        }
    }

    /// Lets the threads end once nothing is queued.
    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.wake.notify_all();
        if let Some(bounces) = &self.bounces {
            bounces.close();
        }
    }

    /// Packs a page, if that is worth it.
    pub(crate) fn pack(&self, core: &Core, meta: &ExtentMeta, source: &Slot) -> Outcome {
        let Some(bounces) = &self.bounces else { return Outcome::AsItIs };
        let next = self.choices.lock().next(meta.namespace);
        let pack = if next == Pack::Measure { self.measure(core, meta, source) } else { next };
        let Pack::By(codec, values) = pack else { return Outcome::AsItIs };
        let room = padded(meta.payload_bytes) as usize;
        let bounce = if self.inline { bounces.try_take(room) } else { bounces.take(room) };
        let Some(bounce) = bounce else { return Outcome::AsItIs };
        let mut encoder = match self.encoder() {
            Ok(encoder) => encoder,
            Err(error) => {
                core.ran_short(&format!("no memory to pack a page: {error}"));
                return Outcome::AsItIs;
            }
        };
        let outcome = encode(&mut encoder, codec, meta, values, source, bounce);
        self.encoders.lock().push(encoder);
        outcome
    }

    fn measure(&self, core: &Core, meta: &ExtentMeta, source: &Slot) -> Pack {
        let mut page = vec![0; meta.payload_bytes as usize];
        let start = Instant::now();
        source.page().copy_to(0, &mut page);
        let mut sum = Checksum::new();
        sum.update(&page);
        if sum.finish() != meta.checksum {
            return Pack::No; // these bytes say nothing of the others; the write finds out that they changed
        }
        let copying = start.elapsed().as_secs_f64() / f64::from(meta.payload_bytes);
        let measured = turnkv_codec::measure(&[&page], Path::best(), || start.elapsed());
        match measured {
            Ok(mut measured) => {
                // Each page is copied and summed on its way as well, by threads that share their processors with others.
                let shared = |rate: f64, threads: usize| threads as f64 * BUSY_SHARE / (1.0 / rate + copying);
                for one in &mut measured {
                    one.encode_bytes_per_s = shared(one.encode_bytes_per_s, packers());
                    one.decode_bytes_per_s = shared(one.decode_bytes_per_s, finishers());
                }
                let device = core.rates();
                self.choices.lock().measured(meta.namespace, measured, device)
            }
            Err(error) => {
                core.ran_short(&format!("codecs cannot be measured: {error}"));
                Pack::No
            }
        }
    }

    fn encoder(&self) -> io::Result<Encoder> {
        let spare = self.encoders.lock().pop();
        spare.map_or_else(|| Encoder::new(Path::best()), Ok)
    }
}

fn encode(
    encoder: &mut Encoder,
    codec: Codec,
    meta: &ExtentMeta,
    values: Values,
    source: &Slot,
    mut bounce: Bounce,
) -> Outcome {
    let page = source.page();
    let Ok(mut target) = bounce.slot().claim() else { return Outcome::AsItIs };
    let mut sum = Checksum::new();
    let read = |at: usize, piece: &mut [u8]| {
        page.copy_to(at, piece);
        sum.update(piece);
    };
    let write = |at: usize, piece: &[u8]| {
        target.fill_at(at, piece);
    };
    let Some(stored) = encoder.encode(codec, values, meta.payload_bytes, read, write) else {
        return Outcome::AsItIs;
    };
    if sum.finish() != meta.checksum {
        return Outcome::Changed;
    }
    let whole = stored.next_multiple_of(BLOCK);
    if whole as u64 == padded(meta.payload_bytes) {
        return Outcome::AsItIs; // nothing is gained on the device
    }
    target.fill_at(stored, &[0; BLOCK][..whole - stored]); // what was here before is nobody's to keep
    drop(target);
    bounce.shrink(whole);
    // An encoded page is shorter than the page, whose length is a u32.
    Outcome::Packed(Packed { bounce, stored_bytes: stored as u32 })
}

/// Starts the threads, which hand each page on.
pub(crate) fn start(
    core: &Arc<Core>,
    packer: &Arc<Packer>,
    hand_on: impl Fn(Pending) + Clone + Send + 'static,
) -> io::Result<Vec<JoinHandle<()>>> {
    let count = if packer.is_off() { 0 } else { packers() };
    let spawn = |index| {
        let (core, packer, hand_on) = (Arc::clone(core), Arc::clone(packer), hand_on.clone());
        let run = move || {
            let _guard = PoisonOnPanic::new(&core, "a packing thread");
            while let Some(pending) = packer.pop() {
                hand_on(pending);
            }
        };
        std::thread::Builder::new().name(format!("nvme-pack-{index}")).spawn(run)
    };
    (0..count).map(spawn).collect()
}
