//! Block hashes between Python and the client. Owns: the packed form, the chain. Must not know: buffers, connections.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use turnkv_client::BlockHash;

const HASH_BYTES: usize = 32;
const TOKEN_BYTES: usize = 4;

/// Reads block hashes: packed in one bytes object, or a sequence of 32-byte strings.
pub(crate) fn parse(hashes: &Bound<'_, PyAny>) -> PyResult<Vec<BlockHash>> {
    if let Ok(packed) = hashes.cast::<PyBytes>() {
        return unpack(packed.as_bytes());
    }
    if let Ok(packed) = hashes.cast::<PyByteArray>() {
        return unpack(&packed.to_vec());
    }
    let not_hashes =
        || PyTypeError::new_err("block hashes are packed bytes or a sequence of 32-byte strings");
    let list = hashes.try_iter().map_err(|_| not_hashes())?;
    list.map(|hash| {
        let hash = hash?;
        one(hash.cast::<PyBytes>().map_err(|_| not_hashes())?.as_bytes())
    })
    .collect()
}

/// Reads one hash.
pub(crate) fn one(bytes: &[u8]) -> PyResult<BlockHash> {
    let hash = bytes.try_into().map_err(|_| {
        PyValueError::new_err(format!("a block hash is {HASH_BYTES} bytes long, this one is {}", bytes.len()))
    })?;
    Ok(BlockHash(hash))
}

/// Packed block hashes of whole pages of u32 little-endian tokens, each page's hash chained to the one before.
#[pyfunction]
#[pyo3(signature = (tokens, page_tokens, parent = None))]
pub(crate) fn chain_hashes<'py>(
    py: Python<'py>,
    tokens: &[u8],
    page_tokens: usize,
    parent: Option<&[u8]>,
) -> PyResult<Bound<'py, PyBytes>> {
    if !tokens.len().is_multiple_of(TOKEN_BYTES) {
        return Err(PyValueError::new_err("tokens are u32: their bytes must be a multiple of 4"));
    }
    let page_bytes = page_tokens.checked_mul(TOKEN_BYTES).filter(|bytes| *bytes > 0);
    let page_bytes = page_bytes.ok_or_else(|| PyValueError::new_err("page_tokens must be at least 1"))?;
    let mut last = parent.map(one).transpose()?;
    let packed = py.detach(|| {
        let mut packed = Vec::with_capacity(tokens.len() / page_bytes * HASH_BYTES);
        let mut page = Vec::with_capacity(page_tokens.min(tokens.len()));
        for bytes in tokens.chunks_exact(page_bytes) {
            page.clear();
            page.extend(bytes.as_chunks::<TOKEN_BYTES>().0.iter().map(|token| u32::from_le_bytes(*token)));
            let hash = BlockHash::chain(last.as_ref(), &page);
            packed.extend_from_slice(&hash.0);
            last = Some(hash);
        }
        packed
    });
    Ok(PyBytes::new(py, &packed))
}

fn unpack(packed: &[u8]) -> PyResult<Vec<BlockHash>> {
    let (hashes, rest) = packed.as_chunks::<HASH_BYTES>();
    if !rest.is_empty() {
        let text = format!("packed hashes are {HASH_BYTES} bytes each, these are {} bytes", packed.len());
        return Err(PyValueError::new_err(text));
    }
    Ok(hashes.iter().map(|hash| BlockHash(*hash)).collect())
}
