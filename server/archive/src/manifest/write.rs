//! A manifest to JSON. Owns: sealing the text with its own digest. Must not know: checks; what is written was checked.

use crate::error::Error;
use crate::id::Digest;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::manifest::model::{Manifest, ShardDigests};
use crate::manifest::raw::{
    LAYOUT, RawManifest, RawOwn, RawPage, RawPosition, RawSequence, RawSplit, VERSION, seal_place,
};
use crate::manifest::weight::weigh;
use crate::split::Split;
use turnkv_proto::BlockHash;

impl Manifest {
    /// Its text, after a check.
    pub fn to_json(&self) -> Result<Vec<u8>, Error> {
        self.check()?;
        let zeros = "0".repeat(64);
        let fault = |fault: &str| Error::invalid("manifest", fault);
        let mut text = serde_json::to_vec(&self.raw(zeros.clone())).map_err(|it| fault(&it.to_string()))?;
        text.push(b'\n');
        Error::bound("bytes of a manifest", text.len() as u64, MANIFEST_BYTES_MAX)?;
        // What is too much for a reader is told now, not to who needs the snapshot.
        weigh(&text).map_err(|it| fault(&it.to_string()))?;
        let place = seal_place(&text, &zeros)
            .ok_or_else(|| fault("its spec, or another field, looks like a seal"))?;
        let digits = Digest::of(&text).to_string();
        text[place..place + digits.len()].copy_from_slice(digits.as_bytes());
        Ok(text)
    }

    fn raw(&self, seal: String) -> RawManifest {
        let header = &self.header;
        RawManifest {
            layout: LAYOUT.to_owned(),
            page_size_tokens: header.page_tokens,
            n_layers: header.layers,
            n_heads: header.heads,
            head_dim: header.head_dim,
            dtype: header.dtype.clone(),
            pages: self.raw_positions(),
            logical_seqs: self.raw_sequences(),
            turnkv: RawOwn {
                version: VERSION,
                id: self.id.to_string(),
                namespace: header.namespace.to_string(),
                spec: header.spec.clone(),
                page_layout: header.page_layout.clone(),
                groups: header.groups.clone(),
                tp: header.shards,
                shard_bytes: header.shard_bytes,
                split: match &header.split {
                    Split::Whole => None,
                    Split::KeyValue { k, v } => Some(RawSplit { k: k.clone(), v: v.clone() }),
                },
                pages: self
                    .pages
                    .iter()
                    .enumerate()
                    .map(|(at, page)| RawPage::new(at, hex(&page.hash), page.parent))
                    .collect(),
                tokens: self
                    .sequences
                    .iter()
                    .any(|sequence| sequence.tokens.is_some())
                    .then(|| self.sequences.iter().map(|sequence| sequence.tokens.clone()).collect()),
                created: self.created_unix_s,
                packs: self.packs.iter().map(ToString::to_string).collect(),
                sha256: seal,
            },
            other: self.other.clone(),
        }
    }

    fn raw_positions(&self) -> Vec<RawPosition> {
        let shards = self.pages.iter().flat_map(|page| &page.shards);
        let positions = shards.enumerate().map(|(ix, shard)| {
            let (k, v, kv) = match shard {
                ShardDigests::Whole(kv) => (None, None, Some(kv.to_string())),
                ShardDigests::KeyValue { k, v } => (Some(k.to_string()), Some(v.to_string()), None),
            };
            RawPosition { ix: ix as u64, k, v, kv }
        });
        positions.collect()
    }

    fn raw_sequences(&self) -> Vec<RawSequence> {
        let shards = u64::from(self.header.shards);
        let sequences = self.sequences.iter().map(|sequence| RawSequence {
            id: sequence.id.clone(),
            page_ixs: sequence
                .pages
                .iter()
                .flat_map(|page| (0..shards).map(move |at| u64::from(*page) * shards + at))
                .collect(),
            fill_in_last_page: sequence.last_page_tokens,
        });
        sequences.collect()
    }
}

fn hex(hash: &BlockHash) -> String {
    Digest(hash.0).to_string()
}
