//! The ids that name things on the wire, checked once at the door.
//! Owns: block hashes, namespace ids, session ids and their packed forms. Must not know: messages, I/O.

use crate::limits::{HASHES_PER_CALL_MAX, SESSION_ID_BYTES_MAX};
use sha2::{Digest, Sha256};
use std::fmt;

#[cfg(test)]
mod tests;

/// Names a page by its whole token prefix: a chained 32-byte hash, the engine's own or [`BlockHash::chain`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

/// Identifies everything that must agree for page bytes to be exchangeable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub [u8; 32]);

/// A session's name within its namespace: 1 to 128 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId(Box<str>);

/// Why an id was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// A packed list whose length is not a multiple of 32.
    #[error("a packed hash list must be a multiple of 32 bytes long, got {0}")]
    RaggedHashes(usize),
    /// More hashes than one call may carry.
    #[error(
        "{0} hashes in one call; at most {HASHES_PER_CALL_MAX} are served (HASHES_PER_CALL_MAX): split the call"
    )]
    TooManyHashes(usize),
    /// A fixed-size id of the wrong size.
    #[error("{what} must be 32 bytes, got {got}")]
    NotAnId {
        /// Which field.
        what: &'static str,
        /// Its length in bytes.
        got: usize,
    },
    /// A session id that is empty, too long or not printable.
    #[error("a session id is 1 to {SESSION_ID_BYTES_MAX} bytes without control characters, got {0} bytes")]
    BadSession(usize),
}

impl BlockHash {
    /// The hash of the page after `parent` that holds `tokens`: SHA-256(parent or nothing, tokens as u32 LE).
    pub fn chain(parent: Option<&BlockHash>, tokens: &[u32]) -> BlockHash {
        let mut sha = Sha256::new();
        if let Some(parent) = parent {
            sha.update(parent.0);
        }
        for token in tokens {
            sha.update(token.to_le_bytes());
        }
        BlockHash(sha.finalize().into())
    }

    /// Reads a hash from exactly 32 bytes.
    pub fn parse(bytes: &[u8]) -> Result<BlockHash, IdError> {
        let bytes =
            bytes.try_into().map_err(|_| IdError::NotAnId { what: "a block hash", got: bytes.len() })?;
        Ok(BlockHash(bytes))
    }

    /// Reads an optional hash: no bytes mean none.
    pub fn parse_optional(bytes: &[u8]) -> Result<Option<BlockHash>, IdError> {
        if bytes.is_empty() { Ok(None) } else { BlockHash::parse(bytes).map(Some) }
    }
}

impl NamespaceId {
    /// Reads an id from exactly 32 bytes.
    pub fn parse(bytes: &[u8]) -> Result<NamespaceId, IdError> {
        let bytes =
            bytes.try_into().map_err(|_| IdError::NotAnId { what: "a namespace id", got: bytes.len() })?;
        Ok(NamespaceId(bytes))
    }
}

impl SessionId {
    /// Checks a session id.
    pub fn parse(text: &str) -> Result<SessionId, IdError> {
        let fits = !text.is_empty() && text.len() <= SESSION_ID_BYTES_MAX;
        if fits && !text.chars().any(char::is_control) {
            Ok(SessionId(text.into()))
        } else {
            Err(IdError::BadSession(text.len()))
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Splits a packed hash list.
pub fn unpack_hashes(packed: &[u8]) -> Result<Vec<BlockHash>, IdError> {
    let (hashes, rest) = packed.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(IdError::RaggedHashes(packed.len()));
    }
    if hashes.len() > HASHES_PER_CALL_MAX {
        return Err(IdError::TooManyHashes(hashes.len()));
    }
    Ok(hashes.iter().map(|hash| BlockHash(*hash)).collect())
}

/// Joins hashes into the packed form of the wire.
pub fn pack_hashes(hashes: &[BlockHash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..8], f)
    }
}

impl fmt::Debug for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..8], f)
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}
