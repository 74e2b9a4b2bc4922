//! Contiguous memory of Python's buffers and tensors, for the time of one call. Owns: addresses, lengths, keeping owners alive.
//! Must not know: connections, hashes, plans.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::ptr::NonNull;
use std::sync::Arc;
use turnkv_client::{HostMemory, PageMemory};

/// Contiguous memory of pages, and the objects that keep it where it is.
pub(crate) struct PageBuffers {
    pages: Vec<PageMemory>,
    owners: Vec<Py<PyAny>>,
}

/// One of them. A call lets go of all its shares before it ends.
#[derive(Debug)]
struct PageBuffer {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address and a size; what may be done there is promised below.
unsafe impl Send for PageBuffer {}
// SAFETY: as above; `&PageBuffer` only reads the address itself.
unsafe impl Sync for PageBuffer {}

// SAFETY: address and size came from a live buffer that `PageBuffers::owners` keeps in place, or from a caller who passed (address,
// bytes) and by the documented contract keeps it readable, and writable for a reload, during the call. Pages have at least one byte.
unsafe impl HostMemory for PageBuffer {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// For how many hashes a call has memory, and for how many shards of each page: one for 0, too.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) hashes: usize,
    pub(crate) shards: u16,
}

impl Wanted {
    /// That there is something for each shard of each page.
    pub(crate) fn check(self, what: &str, given: usize) -> PyResult<()> {
        let Wanted { hashes, shards } = self;
        let wanted = hashes.saturating_mul(shards.max(1).into());
        match shards {
            _ if given == wanted => Ok(()),
            0 | 1 => Err(PyValueError::new_err(format!("{hashes} hashes need as many {what}, got {given}"))),
            _ => Err(PyValueError::new_err(format!(
                "{hashes} hashes with {shards} shards each need {wanted} {what}, page after page, got {given}"
            ))),
        }
    }
}

impl PageBuffers {
    /// The memory of as many buffers as are wanted, of `page_bytes` each.
    pub(crate) fn parse(
        list: &Bound<'_, PyAny>,
        wanted: Wanted,
        page_bytes: u64,
        writable: bool,
    ) -> PyResult<PageBuffers> {
        let mut buffers = PageBuffers { pages: Vec::with_capacity(wanted.hashes), owners: Vec::new() };
        for buffer in list.try_iter()? {
            let (address, bytes) = buffers.add(&buffer?, writable)?;
            if bytes as u64 != page_bytes {
                let index = buffers.pages.len();
                return Err(PyValueError::new_err(format!(
                    "page {index} has {bytes} bytes, pages here have {page_bytes}"
                )));
            }
            let nowhere = || PyValueError::new_err("a page's address is not one of this process");
            if address.checked_add(bytes).is_none_or(|end| isize::try_from(end).is_err()) {
                return Err(nowhere());
            }
            let address = NonNull::new(address as *mut u8).ok_or_else(nowhere)?;
            buffers.pages.push(PageMemory::new(Arc::new(PageBuffer { address, bytes })));
        }
        wanted.check("buffers", buffers.pages.len())?;
        Ok(buffers)
    }

    /// The pages' memory, to be read.
    pub(crate) fn sources(&self) -> &[PageMemory] {
        &self.pages
    }

    /// The pages' memory, to be written. Buffers that overlap are refused: one page would be written over another.
    pub(crate) fn targets(&self) -> PyResult<&[PageMemory]> {
        if PageMemory::any_overlap(&self.pages) {
            return Err(PyValueError::new_err("two pages of one reload overlap in memory"));
        }
        Ok(&self.pages)
    }

    fn add(&mut self, buffer: &Bound<'_, PyAny>, writable: bool) -> PyResult<(usize, usize)> {
        let pair = if let (Ok(bytes), false) = (buffer.cast::<PyBytes>(), writable) {
            self.owners.push(buffer.clone().unbind());
            (bytes.as_bytes().as_ptr() as usize, bytes.as_bytes().len())
        } else if let Some(pair) = plain_pair(buffer) {
            pair
        } else {
            let helper = buffer.py().import("turnkv._buffers")?.getattr("address")?;
            let (at, bytes, owner): (usize, usize, Py<PyAny>) =
                helper.call1((buffer, writable))?.extract()?;
            self.owners.push(owner);
            (at, bytes)
        };
        Ok(pair)
    }
}

/// The unsigned 64-bit integers of a contiguous buffer; whatever holds anything else is refused.
pub(crate) fn unsigned_integers(buffer: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let helper = buffer.py().import("turnkv._buffers")?.getattr("unsigned_integers")?;
    let (at, count, _owner): (usize, usize, Py<PyAny>) = helper.call1((buffer,))?.extract()?;
    // SAFETY: the buffer holds `count` of them, `_owner` keeps it in place, and it is read before this function returns. It
    // may lie anywhere, so it is read as unaligned.
    Ok((0..count).map(|index| unsafe { (at as *const u64).add(index).read_unaligned() }).collect())
}

/// A plain (address, bytes) tuple, without a detour through Python.
fn plain_pair(buffer: &Bound<'_, PyAny>) -> Option<(usize, usize)> {
    let pair: (usize, usize) = buffer.cast::<PyTuple>().ok()?.extract().ok()?;
    (pair.0 > 0 && pair.1 > 0).then_some(pair)
}
