//! What tensors and pages look like to a plan, and why a plan cannot be made. Must not know: addresses, who
//! copies.

use thiserror::Error;

use crate::limits::{DEVICE_RUNS_MAX, PLAN_VIEWS_MAX};

/// Order of a page's bytes in its slot, slowest dimension first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLayout {
    /// [layer, K/V, head, token, row]
    LayerKvHeadToken,
    /// [layer, K/V, token, head, row]
    LayerKvTokenHead,
}

/// Why a plan cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A count that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// More views than [`PLAN_VIEWS_MAX`].
    #[error("{0} views are over PLAN_VIEWS_MAX ({PLAN_VIEWS_MAX})")]
    Views(usize),
    /// More tokens than a page has.
    #[error("{tokens} tokens do not fit a page of {page_tokens}")]
    Tokens {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens of a page.
        page_tokens: usize,
    },
    /// The page reaches past the end of a view.
    #[error("tokens {first_token} to {end_token} are not all in a tensor of {tensor_tokens}")]
    Range {
        /// First token of the page.
        first_token: usize,
        /// One past its last token.
        end_token: usize,
        /// Tokens of the shortest view.
        tensor_tokens: usize,
    },
    /// Sizes that no address space holds.
    #[error("the sizes overflow the address space")]
    Overflow,
    /// More pieces than one page of device memory may be in.
    #[error(
        "a page in {0} pieces is over DEVICE_RUNS_MAX ({DEVICE_RUNS_MAX}): use the layout that the memory has"
    )]
    Runs(usize),
    /// Tensors that are not a whole number for each layer.
    #[error("{tensors} tensors cannot be divided into {layers} layers")]
    Layers {
        /// Layers asked for.
        layers: usize,
        /// Tensors of the plan, or its runs.
        tensors: usize,
    },
    /// A null pointer.
    #[error("a tensor's address is null")]
    Null,
}

/// Sizes and strides of the K or the V of one layer: `[heads, tokens, row]` in any order of strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Heads, at least 1.
    pub heads: usize,
    /// Tokens that the tensor holds, at least 1.
    pub tokens: usize,
    /// Bytes of one token of one head, at least 1, contiguous.
    pub row_bytes: usize,
    /// Bytes from one head to the next.
    pub head_stride_bytes: usize,
    /// Bytes from one token to the next.
    pub token_stride_bytes: usize,
}

impl TensorShape {
    /// Bytes from the first to one past the last byte.
    pub(crate) fn span_bytes(&self) -> Result<usize, PlanError> {
        for (count, name) in [(self.heads, "heads"), (self.tokens, "tokens"), (self.row_bytes, "row_bytes")] {
            if count == 0 {
                return Err(PlanError::Zero(name));
            }
        }
        let heads = (self.heads - 1).checked_mul(self.head_stride_bytes);
        let tokens = (self.tokens - 1).checked_mul(self.token_stride_bytes);
        let span = heads
            .zip(tokens)
            .and_then(|(heads, tokens)| heads.checked_add(tokens)?.checked_add(self.row_bytes));
        span.filter(|&span| isize::try_from(span).is_ok()).ok_or(PlanError::Overflow)
    }
}
