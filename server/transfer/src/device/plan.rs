//! Copy plans between a page slot and tensors in device memory. Owns: the page's runs in slot order, and its layers. Must not
//! know: how they are copied; the arithmetic is that of [`crate::plan`].

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::device::driver::DeviceAddress;
use crate::limits::{DEVICE_RUNS_MAX, PLAN_VIEWS_MAX};
use crate::plan::fragment::view_bytes;
use crate::plan::{Fragments, PageLayout, PageOf, PlanError, Run, TensorShape};

/// The K or the V of one layer in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView {
    base: DeviceAddress,
    shape: TensorShape,
}

impl DeviceView {
    /// Describes a tensor whose token 0 of head 0 lies at `address`.
    ///
    /// # Safety
    /// As long as this view or a plan made of it is used, and until the copies begun with it are done:
    /// - all bytes of the rows of the shape are valid memory of the device that copies;
    /// - nobody else writes them while they are offloaded, or touches them while they are reloaded, except in the order that
    ///   streams and events give.
    ///
    /// # Errors
    /// The shape is empty or larger than the address space, or the address is 0.
    pub unsafe fn new(address: DeviceAddress, shape: TensorShape) -> Result<Self, PlanError> {
        if address == 0 {
            return Err(PlanError::Null);
        }
        let span = shape.span_bytes()? as u64;
        address.checked_add(span).ok_or(PlanError::Overflow)?;
        Ok(Self { base: address, shape })
    }
}

/// What to copy between one slot and the device memory of one page. Clones share the runs.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    runs: Arc<[Run<DeviceAddress>]>,
    /// Where the tensors begin in the slot, or the runs of a plan that was made of runs: what layers are counted in.
    units: Arc<[usize]>,
    slot_bytes: usize,
    /// Parts of the slot are in no run.
    gaps: bool,
    /// Keeps the device memory from being freed.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl DevicePlan {
    fn new(
        runs: Arc<[Run<DeviceAddress>]>,
        units: Arc<[usize]>,
        slot_bytes: usize,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        let gaps = runs.iter().map(|run| run.bytes).sum::<usize>() < slot_bytes;
        Self { runs, units, slot_bytes, gaps, owner }
    }

    /// Plans the page of the tokens `[first_token, first_token + tokens)` of all `views`, given in slot order.
    ///
    /// # Errors
    /// As [`CopyPlan::page`](crate::CopyPlan::page); or the page is in more than [`DEVICE_RUNS_MAX`] pieces.
    pub fn page(
        layout: PageLayout,
        views: &[DeviceView],
        page_tokens: usize,
        first_token: usize,
        tokens: usize,
    ) -> Result<Self, PlanError> {
        let page = PageOf { layout, page_tokens, first_token, tokens };
        let fragments = Fragments::page(page, views.iter().map(|view| (view.base, view.shape)))?;
        if fragments.count() > DEVICE_RUNS_MAX {
            return Err(PlanError::Runs(fragments.count()));
        }
        let mut units = Vec::with_capacity(views.len());
        let mut offset = 0;
        for view in views {
            units.push(offset);
            offset += view_bytes(&view.shape, page_tokens)?;
        }
        let slot_bytes = fragments.slot_bytes();
        Ok(Self::new(fragments.runs().collect(), units.into(), slot_bytes, None))
    }

    /// A plan of pieces that fill the slot one after another, each `(address, bytes)`.
    ///
    /// # Safety
    /// As [`DeviceView::new`], for all of the pieces.
    ///
    /// # Errors
    /// There are none, or more than [`DEVICE_RUNS_MAX`]; one is empty or at address 0; sizes overflow.
    pub unsafe fn runs(pieces: &[(DeviceAddress, usize)]) -> Result<Self, PlanError> {
        Self::of_pieces(pieces, None)
    }

    /// The same for memory whose owner vouches for it.
    pub(crate) fn of_pieces(
        pieces: &[(DeviceAddress, usize)],
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, PlanError> {
        if pieces.is_empty() {
            return Err(PlanError::Zero("runs"));
        }
        if pieces.len() > DEVICE_RUNS_MAX {
            return Err(PlanError::Runs(pieces.len()));
        }
        let mut slot_bytes = 0usize;
        let mut runs = Vec::with_capacity(pieces.len());
        for &(memory, bytes) in pieces {
            if memory == 0 {
                return Err(PlanError::Null);
            }
            if bytes == 0 {
                return Err(PlanError::Zero("a run's bytes"));
            }
            memory.checked_add(bytes as u64).ok_or(PlanError::Overflow)?;
            runs.push(Run { memory, slot_offset: slot_bytes, bytes });
            slot_bytes = slot_bytes.checked_add(bytes).ok_or(PlanError::Overflow)?;
        }
        isize::try_from(slot_bytes).map_err(|_| PlanError::Overflow)?;
        let units = runs.iter().map(|run| run.slot_offset).collect();
        Ok(Self::new(runs.into(), units, slot_bytes, owner))
    }

    /// A plan of a page that lies at `base` in slot order, of which only some parts hold bytes.
    pub(crate) fn of_parts(
        base: DeviceAddress,
        slot_bytes: usize,
        parts: &[Range<usize>],
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, PlanError> {
        if parts.is_empty() {
            return Err(PlanError::Zero("parts"));
        }
        let mut runs = Vec::with_capacity(parts.len());
        let mut position = 0;
        for part in parts {
            if part.start < position || part.is_empty() || part.end > slot_bytes {
                return Err(PlanError::Overflow);
            }
            position = part.end;
            runs.push(Run { memory: base + part.start as u64, slot_offset: part.start, bytes: part.len() });
        }
        Ok(Self::new(runs.into(), Arc::new([0]), slot_bytes, Some(owner)))
    }

    /// Ties the life of something to the plan and to every copy begun with it: a tensor that must not be freed before.
    #[must_use]
    pub fn owned_by(mut self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Bytes of the slot that this plan is for: a whole page, even if the plan's page is partial.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The runs in slot order. They never overlap in the slot.
    #[must_use]
    pub fn pieces(&self) -> &[Run<DeviceAddress>] {
        &self.runs
    }

    /// How many pieces they are when those that touch on both sides are joined.
    pub(crate) fn joined_pieces(&self) -> usize {
        let apart = |pair: &&[Run<DeviceAddress>]| {
            let [one, next] = pair else { return false };
            one.slot_offset + one.bytes != next.slot_offset || one.memory + one.bytes as u64 != next.memory
        };
        self.runs.windows(2).filter(apart).count() + 1
    }

    /// Whether parts of the slot are in no run.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.gaps
    }

    /// Parts of the slot, one for each of `count` layers: the tensors (or runs) of the plan in as many equal groups. Layer `l`
    /// of a plan with `k` tensors a layer is of the tensors `l * k .. (l + 1) * k`.
    ///
    /// # Errors
    /// The tensors cannot be divided evenly into so many.
    pub fn layers(&self, count: usize) -> Result<Vec<Range<usize>>, PlanError> {
        let units = self.units.len();
        if count == 0 || !units.is_multiple_of(count) || count > PLAN_VIEWS_MAX {
            return Err(PlanError::Layers { layers: count, tensors: units });
        }
        let each = units / count;
        let start = |layer: usize| self.units.get(layer * each).copied().unwrap_or(self.slot_bytes);
        Ok((0..count).map(|layer| start(layer)..start(layer + 1)).collect())
    }

    /// The runs inside a part of the slot, cut at its ends.
    pub(crate) fn within(&self, part: Range<usize>) -> impl Iterator<Item = Run<DeviceAddress>> {
        let first = self.runs.partition_point(|run| run.slot_offset + run.bytes <= part.start);
        self.runs[first..].iter().take_while(move |run| run.slot_offset < part.end).map(move |run| {
            let start = run.slot_offset.max(part.start);
            let end = (run.slot_offset + run.bytes).min(part.end);
            let memory = run.memory + (start - run.slot_offset) as u64;
            Run { memory, slot_offset: start, bytes: end - start }
        })
    }

    /// The parts of the slot that are in no run.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|run| run.slot_offset + run.bytes));
        let ends = self.runs.iter().map(|run| run.slot_offset).chain(std::iter::once(self.slot_bytes));
        starts.zip(ends).map(|(start, end)| start..end).filter(|gap| !gap.is_empty())
    }
}

#[cfg(test)]
mod tests;
