//! Lossless compression of KV pages. Pure: bytes in, bytes out. Must not know: tiers, files, sessions.
//!
//! The bits of a floating-point value are not alike: sign and fraction are close to random, exponents are few. A lane of
//! a type of value tells them apart; a [`Codec`] packs the exponents and leaves the rest as it is.
//!
//! - `codebook`: exponents as four bits each, by a book of the fifteen most frequent ones of a block
//! - `book`: which those are, and tables by which their codes are found
//! - `squeeze`: zstd, over a block's exponents or over all of it
//! - `page`: a page as blocks, each with its length; [`Encoder`] and [`Decoder`]
//! - `kernel`: which instructions the loops are compiled for
//! - `choose`: which codec is worth it on a device, measured on real pages

mod book;
mod choose;
mod codebook;
mod codec;
mod kernel;
mod lane;
pub mod limits;
mod page;
mod squeeze;
#[cfg(test)]
mod tests;

pub use choose::{DeviceRates, Measured, best, measure};
pub use codec::{Codec, Corrupt, Values};
pub use kernel::Path;
pub use page::{Decoder, Encoder};
