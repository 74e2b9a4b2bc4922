//! Fork: a snapshot that is the beginning of another's sequence. Owns: cutting manifests. Must not know: pages' bytes.
//!
//! Nothing but a manifest is written, unless blobs that it needs are only in packs that will go: these are moved first.

use crate::archive::Archive;
use crate::capture::write_manifest;
use crate::error::Error;
use crate::fill::Filler;
use crate::id::{Digest, ObjectId};
use crate::intent::Intent;
use crate::limits::LOOKUPS_MAX;
use crate::manifest::{Manifest, ManifestPage, Sequence};
use crate::moving::move_blobs;
use crate::pack::format::Entry;
use crate::term::Term;
use std::collections::{BTreeMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a fork ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Behind so many pages; at least 1, at most all. Of the sequence's last page, as many tokens as it has.
    Pages(u32),
    /// Behind so many tokens; at least 1, at most all. The last page is kept whole, under its own hash, and has fewer tokens.
    Tokens(u64),
}

impl Archive {
    /// Makes a snapshot of the beginning of a sequence of another, under a new name.
    pub async fn fork(
        &self,
        source: ObjectId,
        sequence: &str,
        cut: Cut,
        name: &str,
    ) -> Result<Manifest, Error> {
        let term = Term::begin("a fork", self.made().await?);
        self.refresh().await?;
        let source = self.manifest(source).await?;
        let mut fork = cut_manifest(&source, sequence, cut, name)?;
        let digests: HashSet<Digest> = fork.digests().collect();
        let mut intent = Intent::new(fork.id);
        let mut tries = LOOKUPS_MAX;
        let (reused, moved) = loop {
            tries -= 1;
            match self.secure(&digests, &mut intent).await {
                // A collection moved blobs out of a pack that was to go, and deleted it.
                Err(Error::NotFound { .. }) if tries > 0 => self.refresh().await?,
                Err(fault) => {
                    // A source that was deleted meanwhile explains what is missing.
                    self.manifest(source.id).await?;
                    return Err(fault);
                }
                Ok(secured) => break secured,
            }
        };
        fork.packs = reused.keys().copied().chain(moved).collect();
        write_manifest(self, &fork, &reused, &term).await?;
        intent.end(self).await;
        Ok(fork)
    }

    /// Makes sure that blobs are in packs that stay: those that had them, with the bytes of each, and those that they were moved to.
    async fn secure(
        &self,
        digests: &HashSet<Digest>,
        intent: &mut Intent,
    ) -> Result<(BTreeMap<ObjectId, u64>, Vec<ObjectId>), Error> {
        let mut reused = BTreeMap::new();
        let mut going: BTreeMap<ObjectId, Vec<Entry>> = BTreeMap::new();
        let found = self.locate(digests).await?;
        for digest in digests {
            let found =
                found.get(digest).ok_or_else(|| Error::NotFound { object: format!("blob {digest}") })?;
            if self.index.lock().is_condemned(&found.pack) {
                going.entry(found.pack).or_default().push(found.entry);
            } else {
                reused.insert(found.pack, found.pack_bytes);
            }
        }
        intent.add(self, &reused.keys().copied().collect::<Vec<_>>()).await?;
        let mut filler = Filler::new(self);
        for (pack, entries) in going {
            move_blobs(self, &mut filler, pack, &entries).await?;
        }
        Ok((reused, filler.finish().await?))
    }
}

/// The manifest of the beginning of a sequence.
fn cut_manifest(source: &Manifest, sequence: &str, cut: Cut, name: &str) -> Result<Manifest, Error> {
    let found = source.sequences.iter().find(|one| one.id == sequence);
    let found = found
        .ok_or_else(|| Error::invalid("sequence", format!("the snapshot has none called {sequence:?}")))?;
    let page_tokens = u64::from(source.header.page_tokens);
    let whole = (found.pages.len() as u64 - 1) * page_tokens + u64::from(found.last_page_tokens);
    let tokens = match cut {
        Cut::Pages(pages) if pages as usize == found.pages.len() => whole,
        Cut::Pages(pages) => u64::from(pages) * page_tokens,
        Cut::Tokens(tokens) => tokens,
    };
    if tokens == 0 || tokens > whole {
        let fault = format!("must be within the {} pages, {whole} tokens of the sequence", found.pages.len());
        return Err(Error::invalid("cut", fault));
    }
    let kept = tokens.div_ceil(page_tokens) as usize;
    let pages = found.pages.iter().take(kept).enumerate();
    let pages: Vec<ManifestPage> = pages
        .map(|(at, page)| {
            let parent = at.checked_sub(1).map(|parent| parent as u32);
            ManifestPage { parent, ..source.pages[*page as usize].clone() }
        })
        .collect();
    let ids = found.tokens.as_ref().map(|ids| ids.iter().take(tokens as usize).copied().collect());
    let sequence = Sequence {
        id: name.to_owned(),
        pages: (0..kept as u32).collect(),
        last_page_tokens: (tokens - (kept as u64 - 1) * page_tokens) as u32,
        tokens: ids,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let fork = Manifest {
        id: ObjectId::new(),
        header: source.header.clone(),
        pages,
        sequences: vec![sequence],
        created_unix_s: since.as_secs(),
        packs: Vec::new(),
        other: source.other.clone(),
    };
    fork.check()?;
    Ok(fork)
}
