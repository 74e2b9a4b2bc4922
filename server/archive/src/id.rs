//! Names: digests of blobs, ids of objects, names of sessions. Owns: their forms. Must not know: what they name.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use turnkv_proto::NamespaceId;

/// SHA-256 of a blob's bytes, uncompressed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// From 64 lowercase hexadecimal digits, with or without `sha256:` before them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Digest> {
        unhex(text.strip_prefix("sha256:").unwrap_or(text)).map(Digest)
    }

    /// Its first eight bytes: enough to tell blobs apart where a mistake costs nothing.
    pub(crate) fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..8], f)
    }
}

/// Names one object for ever: six bytes of milliseconds since 1970, big-endian, so that names sort by age; then ten bytes that no
/// other has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; 16]);

/// What else tells two ids of one process apart.
static COUNT: AtomicU64 = AtomicU64::new(0);

impl ObjectId {
    /// A new one.
    #[must_use]
    pub fn new() -> ObjectId {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut sha = Sha256::new();
        for _ in 0..2 {
            // The standard library keys its hashers from the system's random numbers.
            sha.update(RandomState::new().build_hasher().finish().to_le_bytes());
        }
        sha.update(COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        sha.update(std::process::id().to_le_bytes());
        sha.update(since.as_nanos().to_le_bytes());
        let random: [u8; 32] = sha.finalize().into();
        let mut id = [0; 16];
        id[..6].copy_from_slice(&(since.as_millis() as u64).to_be_bytes()[2..]);
        id[6..].copy_from_slice(&random[..10]);
        ObjectId(id)
    }

    /// From 32 lowercase hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<ObjectId> {
        unhex(text).map(ObjectId)
    }
}

/// Names a session in a store: the first half of the digest of its namespace and of its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionName(pub [u8; 16]);

impl SessionName {
    /// Of a session of a namespace.
    #[must_use]
    pub fn of(namespace: &NamespaceId, session: &str) -> SessionName {
        let mut sha = Sha256::new();
        sha.update(namespace.0);
        sha.update(session.as_bytes());
        let digest: [u8; 32] = sha.finalize().into();
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        SessionName(half)
    }

    /// From 32 lowercase hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<SessionName> {
        unhex(text).map(SessionName)
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl Default for ObjectId {
    fn default() -> Self {
        ObjectId::new()
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Bytes from twice as many lowercase hexadecimal digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |letter: u8| match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}
