//! What is in a page: bytes that say which page they are of and from which offload, and that agree with one another.
//! Must not know: the server.

/// One shard of one page of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shard {
    pub(crate) space: usize,
    pub(crate) page: u32,
    pub(crate) shard: u16,
}

/// Bytes of the head.
const HEAD: usize = 24;

/// Bits of a word that are few values in every second offload: its bytes can be packed then.
const FEW: u64 = 0x0303_0303_ffff_ffff;

/// The bytes of an offload of a shard: every offload has a number of its own.
pub(crate) fn bytes(of: Shard, offload: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    out.extend((of.space as u32).to_le_bytes());
    out.extend(of.page.to_le_bytes());
    out.extend(u32::from(of.shard).to_le_bytes());
    out.extend(0x7075_6c6cu32.to_le_bytes());
    out.extend(offload.to_le_bytes());
    let mut word = offload ^ u64::from(of.page) << 32 ^ u64::from(of.shard) << 16 ^ of.space as u64;
    while out.len() < len {
        word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ out.len() as u64;
        let shown = if offload.is_multiple_of(2) { word } else { word & FEW };
        out.extend(shown.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Whose bytes these are, if they are anybody's, whole.
pub(crate) fn whose(found: &[u8]) -> Option<(Shard, u64)> {
    let word =
        |at: usize| found.get(at..at + 4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or([0; 4])));
    let of = Shard { space: word(0)? as usize, page: word(4)?, shard: word(8)? as u16 };
    let offload = u64::from_le_bytes(found.get(16..HEAD)?.try_into().ok()?);
    (bytes(of, offload, found.len()) == found).then_some((of, offload))
}
