//! The memory of Python's buffers and tensors, for the time of one call. Owns: addresses, lengths, keeping owners alive, turning
//! views into copy plans. Must not know: connections, hashes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use turnkv_client::{CopyPlan, PageLayout, TensorShape, TensorView};

/// Contiguous memory of pages, and the objects that keep it where it is.
pub(crate) struct PageBuffers {
    pages: Vec<(usize, usize)>,
    owners: Vec<Py<PyAny>>,
}

/// K or V of one layer as Python gives it: address, heads, head stride, token stride, row (bytes).
pub(crate) type View = (usize, usize, usize, usize, usize);

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
                let index = buffers.pages.len() - 1;
                return Err(PyValueError::new_err(format!(
                    "page {index} has {bytes} bytes, pages here have {page_bytes}"
                )));
            }
            if address.checked_add(bytes).is_none_or(|end| isize::try_from(end).is_err()) || address == 0 {
                return Err(PyValueError::new_err("a page's address is not one of this process"));
            }
        }
        wanted.check("buffers", buffers.pages.len())?;
        Ok(buffers)
    }

    /// The pages' bytes, to read.
    pub(crate) fn sources(&self) -> Vec<&[u8]> {
        // SAFETY: each address and length came from a live buffer that `owners` keeps in place, or from a caller who passed
        // (address, bytes) and by the documented contract keeps it readable and unchanged during the call.
        self.pages
            .iter()
            .map(|&(at, bytes)| unsafe { std::slice::from_raw_parts(at as *const u8, bytes) })
            .collect()
    }

    /// The pages' bytes, to write. Buffers that overlap are refused: they would be two exclusive borrows of one byte.
    pub(crate) fn targets(&mut self) -> PyResult<Vec<&mut [u8]>> {
        let mut order = self.pages.clone();
        order.sort_unstable();
        if order.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(PyValueError::new_err("two pages of one reload overlap in memory"));
        }
        // SAFETY: as in `sources`, writable was checked or promised, and the ranges do not overlap one another.
        let target =
            |&(at, bytes): &(usize, usize)| unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) };
        Ok(self.pages.iter().map(target).collect())
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
        self.pages.push(pair);
        Ok(pair)
    }
}

/// That there is a hash for each page which so many tokens begin.
pub(crate) fn check_pages(hashes: usize, tokens: usize, page_tokens: usize) -> PyResult<()> {
    let pages = tokens.div_ceil(page_tokens);
    if pages != hashes {
        let text = format!("{tokens} tokens are {pages} pages of {page_tokens}, there are {hashes} hashes");
        return Err(PyValueError::new_err(text));
    }
    Ok(())
}

/// One plan a page: page i has the tokens from `i * page_tokens` on, the last one what is left of `tokens`.
pub(crate) fn plans(
    layout: Option<PageLayout>,
    views: &[View],
    page_tokens: usize,
    tokens: usize,
    page_bytes: u64,
) -> PyResult<Vec<CopyPlan>> {
    let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
    let layout = layout.ok_or_else(|| PyValueError::new_err("an opaque namespace has no tensor layout"))?;
    let mut tensors = Vec::with_capacity(views.len());
    for &(address, heads, head_stride_bytes, token_stride_bytes, row_bytes) in views {
        let shape = TensorShape { heads, tokens, row_bytes, head_stride_bytes, token_stride_bytes };
        // SAFETY: the caller of the Python method promises (documented there) that the view's rows are valid, and that nobody
        // else uses them, until the call returns; the plans do not outlive it.
        tensors.push(unsafe { TensorView::new(address as *mut u8, shape) }.map_err(|error| invalid(&error))?);
    }
    let mut plans = Vec::with_capacity(tokens.div_ceil(page_tokens));
    for first in (0..tokens).step_by(page_tokens) {
        let count = page_tokens.min(tokens - first);
        plans.push(
            CopyPlan::page(layout, &tensors, page_tokens, first, count).map_err(|error| invalid(&error))?,
        );
    }
    if let Some(plan) = plans.first().filter(|plan| plan.slot_bytes() as u64 != page_bytes) {
        let text =
            format!("these views make pages of {} bytes, pages here have {page_bytes}", plan.slot_bytes());
        return Err(PyValueError::new_err(text));
    }
    Ok(plans)
}

/// Plans of pages whose heads are divided among neighbouring shards: page after page, of each page one shard after another.
/// `plans` makes those of one shard, from its part of each view.
pub(crate) fn of_shards<T>(
    views: &[View],
    shards: u16,
    plans: impl Fn(&[View]) -> PyResult<Vec<T>>,
) -> PyResult<Vec<T>> {
    let shards = usize::from(shards.max(1));
    if shards == 1 {
        return plans(views);
    }
    if let Some((_, heads, ..)) = views.iter().find(|(_, heads, ..)| !heads.is_multiple_of(shards)) {
        let text = format!("a view of {heads} heads cannot be divided among {shards} shards");
        return Err(PyValueError::new_err(text));
    }
    let part = |shard: usize, &(address, heads, head_stride, token_stride, row): &View| {
        let heads = heads / shards;
        let offset = (shard * heads).checked_mul(head_stride).and_then(|bytes| address.checked_add(bytes));
        let address = offset.ok_or_else(|| PyValueError::new_err("a view's heads end behind all memory"))?;
        Ok((address, heads, head_stride, token_stride, row))
    };
    let mut all = Vec::with_capacity(shards);
    for shard in 0..shards {
        let views = views.iter().map(|view| part(shard, view)).collect::<PyResult<Vec<View>>>()?;
        all.push(plans(&views)?.into_iter());
    }
    let pages = all.first().map_or(0, ExactSizeIterator::len);
    Ok((0..pages * shards).filter_map(|position| all[position % shards].next()).collect())
}

/// One plan a page (a shard of it, where a call moves several), of pages that lie in runs: `addresses` has the runs' addresses as u64, page after page, `lengths` their
/// bytes, the same for every page.
pub(crate) fn run_plans(addresses: &Bound<'_, PyAny>, lengths: &[usize]) -> PyResult<Vec<CopyPlan>> {
    let addresses = run_addresses(addresses, lengths)?;
    let run = |(index, row_bytes): (usize, &usize)| {
        let row_bytes = *row_bytes;
        let shape =
            TensorShape { heads: 1, tokens: 1, row_bytes, head_stride_bytes: 0, token_stride_bytes: 0 };
        // SAFETY: the caller of the Python method promises (documented there) that the runs are valid, and that nobody else
        // uses them, until the call returns; the plans do not outlive it.
        unsafe { TensorView::new(addresses[index] as *mut u8, shape) }
    };
    let page = |first: usize| {
        let views = lengths.iter().enumerate().map(|(index, bytes)| run((first + index, bytes)));
        CopyPlan::page(PageLayout::LayerKvHeadToken, &views.collect::<Result<Vec<_>, _>>()?, 1, 0, 1)
    };
    let plans = (0..addresses.len())
        .step_by(lengths.len())
        .map(page)
        .collect::<Result<_, turnkv_client::PlanError>>();
    plans.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The addresses of whole pages of runs.
pub(crate) fn run_addresses(addresses: &Bound<'_, PyAny>, lengths: &[usize]) -> PyResult<Vec<u64>> {
    if lengths.is_empty() {
        return Err(PyValueError::new_err("a page is made of at least one run"));
    }
    let helper = addresses.py().import("turnkv._buffers")?.getattr("address")?;
    let (at, bytes, _owner): (usize, usize, Py<PyAny>) = helper.call1((addresses, false))?.extract()?;
    let count = bytes / size_of::<u64>();
    if bytes != count * size_of::<u64>() || !count.is_multiple_of(lengths.len()) {
        let text = format!("{bytes} bytes of addresses are not 8 for each of {} runs a page", lengths.len());
        return Err(PyValueError::new_err(text));
    }
    // SAFETY: the buffer is `bytes` long, `_owner` keeps it in place, and it is read before this function returns. It may
    // lie anywhere, so it is read as unaligned.
    Ok((0..count).map(|index| unsafe { (at as *const u64).add(index).read_unaligned() }).collect())
}

/// A plain (address, bytes) tuple, without a detour through Python.
fn plain_pair(buffer: &Bound<'_, PyAny>) -> Option<(usize, usize)> {
    let pair: (usize, usize) = buffer.cast::<PyTuple>().ok()?.extract().ok()?;
    (pair.0 > 0 && pair.1 > 0).then_some(pair)
}
