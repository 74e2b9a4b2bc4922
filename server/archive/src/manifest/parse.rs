//! A manifest from JSON. Owns: the order of checks, and naming the field that is wrong. Must not know: where the text was kept.

use crate::error::Error;
use crate::id::{Digest, ObjectId, unhex};
use crate::limits::{
    MANIFEST_BYTES_MAX, MANIFEST_PAGES_MAX, MANIFEST_POSITIONS_MAX, PACKS_NAMED_MAX, SEQUENCES_MAX,
};
use crate::manifest::model::{Header, Manifest, ManifestPage, Sequence, ShardDigests};
use crate::manifest::raw::{LAYOUT, RawManifest, RawPage, RawPosition, RawSequence, VERSION, seal_place};
use crate::manifest::weight::weigh;
use crate::split::Split;
use serde_json::error::Category;
use turnkv_proto::limits::SHARDS_MAX;
use turnkv_proto::{BlockHash, NamespaceId};

impl Manifest {
    /// From its text. Everything is checked; the error names the field.
    pub fn parse(text: &[u8]) -> Result<Manifest, Error> {
        Error::bound("bytes of a manifest", text.len() as u64, MANIFEST_BYTES_MAX)?;
        weigh(text).map_err(|fault| not_json(text, &fault))?;
        let raw: RawManifest = serde_json::from_slice(text).map_err(|fault| not_json(text, &fault))?;
        if raw.layout != LAYOUT {
            return Err(Error::invalid("layout", format!("is not {LAYOUT}")));
        }
        if raw.turnkv.version != VERSION {
            let fault = format!("is {}; this program knows {VERSION}", raw.turnkv.version);
            return Err(Error::invalid("turnkv.version", fault));
        }
        check_seal(text, &raw.turnkv.sha256)?;
        let own = raw.turnkv;
        let header = Header {
            namespace: NamespaceId(id_of("turnkv.namespace", &own.namespace)?),
            spec: own.spec,
            page_layout: own.page_layout,
            page_tokens: raw.page_size_tokens,
            layers: raw.n_layers,
            heads: raw.n_heads,
            head_dim: raw.head_dim,
            dtype: raw.dtype,
            groups: own.groups,
            shards: own.tp,
            shard_bytes: own.shard_bytes,
            split: match own.split {
                None => Split::Whole,
                Some(split) => Split::KeyValue { k: split.k, v: split.v },
            },
        };
        header.check()?;
        let pages = pages(&header, &own.pages, &raw.pages)?;
        let sequences = sequences(header.shards, raw.logical_seqs, own.tokens)?;
        Error::bound("packs that a manifest names", own.packs.len() as u64, PACKS_NAMED_MAX as u64)?;
        let packs = own
            .packs
            .iter()
            .enumerate()
            .map(|(at, id)| id_of(&format!("turnkv.packs[{at}]"), id).map(ObjectId));
        let packs = packs.collect::<Result<_, _>>()?;
        let id = ObjectId(id_of("turnkv.id", &own.id)?);
        let manifest =
            Manifest { id, header, pages, sequences, created_unix_s: own.created, packs, other: raw.other };
        manifest.check()?;
        Ok(manifest)
    }
}

/// Fails if the text is not the one that was sealed.
fn check_seal(text: &[u8], digits: &str) -> Result<(), Error> {
    const FIELD: &str = "turnkv.sha256";
    let sealed = unhex(digits).map(Digest);
    let sealed = sealed.ok_or_else(|| Error::invalid(FIELD, "is not 64 lowercase hexadecimal digits"))?;
    let place = seal_place(text, digits);
    let place = place.ok_or_else(|| Error::invalid(FIELD, "is not written as a manifest's seal is"))?;
    let mut blank = text.to_vec();
    blank[place..place + digits.len()].fill(b'0');
    if Digest::of(&blank) != sealed {
        return Err(Error::invalid(
            FIELD,
            "is not the digest of this text: it was changed since it was written",
        ));
    }
    Ok(())
}

fn pages(header: &Header, own: &[RawPage], positions: &[RawPosition]) -> Result<Vec<ManifestPage>, Error> {
    Error::bound("pages of a manifest", own.len() as u64, MANIFEST_PAGES_MAX as u64)?;
    let shards = header.shards as usize;
    debug_assert!(shards <= SHARDS_MAX as usize, "a header that was checked");
    if own.len().checked_mul(shards) != Some(positions.len()) || positions.len() > MANIFEST_POSITIONS_MAX {
        let fault = format!("{} of them, for {} pages of {shards} shards", positions.len(), own.len());
        return Err(Error::invalid("pages", fault));
    }
    let mut pages = Vec::with_capacity(own.len());
    for (at, (page, positions)) in own.iter().zip(positions.chunks_exact(shards)).enumerate() {
        let hash = BlockHash(id_of(&format!("turnkv.pages[{at}].hash"), &page.hash)?);
        let digests = positions.iter().enumerate().map(|(shard, raw)| position(at * shards + shard, raw));
        let digests = digests.collect::<Result<Vec<_>, _>>()?;
        pages.push(ManifestPage { hash, parent: page.parent_at(at), shards: digests });
    }
    Ok(pages)
}

fn position(at: usize, raw: &RawPosition) -> Result<ShardDigests, Error> {
    let digest = |name: &str, text: &str| {
        let fault = "is not 64 lowercase hexadecimal digits";
        Digest::parse(text).ok_or_else(|| Error::invalid(format!("pages[{at}].{name}"), fault))
    };
    if raw.ix != at as u64 {
        return Err(Error::invalid(format!("pages[{at}].ix"), format!("is {}", raw.ix)));
    }
    match (&raw.k, &raw.v, &raw.kv) {
        (Some(k), Some(v), None) => Ok(ShardDigests::KeyValue { k: digest("k", k)?, v: digest("v", v)? }),
        (None, None, Some(kv)) => Ok(ShardDigests::Whole(digest("kv", kv)?)),
        _ => Err(Error::invalid(format!("pages[{at}]"), "must have k and v, or kv")),
    }
}

fn sequences(
    shards: u32,
    raw: Vec<RawSequence>,
    tokens: Option<Vec<Option<Vec<u32>>>>,
) -> Result<Vec<Sequence>, Error> {
    Error::bound("sequences of a manifest", raw.len() as u64, SEQUENCES_MAX as u64)?;
    let tokens = tokens.unwrap_or_else(|| vec![None; raw.len()]);
    if tokens.len() != raw.len() {
        return Err(Error::invalid("turnkv.tokens", "must have as many lists as there are sequences"));
    }
    let sequences = raw.into_iter().zip(tokens).enumerate().map(|(at, (raw, tokens))| {
        let field = || format!("logical_seqs[{at}].page_ixs");
        let pages = whole_pages(shards.into(), &raw.page_ixs);
        let pages =
            pages.ok_or_else(|| Error::invalid(field(), "must be whole pages, their shards in order"))?;
        Ok(Sequence { id: raw.id, pages, last_page_tokens: raw.fill_in_last_page, tokens })
    });
    sequences.collect()
}

/// The pages whose positions these are, if they are whole pages.
fn whole_pages(shards: u64, positions: &[u64]) -> Option<Vec<u32>> {
    let chunks = positions.chunks(shards as usize);
    chunks
        .map(|chunk| {
            let first = *chunk.first()?;
            let in_order = chunk.iter().zip(first..).all(|(position, wanted)| *position == wanted);
            let whole = chunk.len() as u64 == shards && first.is_multiple_of(shards) && in_order;
            u32::try_from(first / shards).ok().filter(|_| whole)
        })
        .collect()
}

fn id_of<const N: usize>(field: &str, text: &str) -> Result<[u8; N], Error> {
    unhex(text).ok_or_else(|| Error::invalid(field, format!("is not {} lowercase hexadecimal digits", 2 * N)))
}

/// Names the field before the place where a text could not be read.
fn not_json(text: &[u8], fault: &serde_json::Error) -> Error {
    let field = match fault.classify() {
        Category::Data => field_before(text, fault.line(), fault.column()),
        _ => None,
    };
    Error::invalid(field.unwrap_or_else(|| "manifest".to_owned()), fault.to_string())
}

/// The last `"name":` at or before a place, lines and columns counted from 1.
fn field_before(text: &[u8], line: usize, column: usize) -> Option<String> {
    const NAME_BYTES_MAX: usize = 64;
    let begins = text
        .split_inclusive(|byte| *byte == b'\n')
        .take(line.checked_sub(1)?)
        .map(<[u8]>::len)
        .sum::<usize>();
    let until = text.get(..(begins + column).min(text.len()))?;
    let mut end = until.len();
    while let Some(colon) = until[..end].iter().rposition(|byte| *byte == b':') {
        if let Some(before) = until[..colon].strip_suffix(b"\"") {
            let start = before.iter().rposition(|byte| *byte == b'"')?;
            let name = std::str::from_utf8(&before[start + 1..]).ok()?;
            return (name.len() <= NAME_BYTES_MAX).then(|| name.to_owned());
        }
        end = colon;
    }
    None
}
