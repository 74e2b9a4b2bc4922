//! Which pages a snapshot takes, in which order, and which sequences they make. Owns: parents before children, and what becomes of
//! sequences when pages are gone before they were read. Must not know: the pool, pages' bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use turnkv_archive::Sequence;
use turnkv_pool::PageOutline;
use turnkv_proto::{BlockHash, Error};

/// Token ids by the name of their sequence.
pub(crate) type TokensOf = BTreeMap<String, Vec<u32>>;

/// A page to be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlannedPage {
    pub(super) hash: BlockHash,
    /// Which of the pages is before it, an earlier one.
    pub(super) parent: Option<u32>,
}

/// A sequence of these pages.
#[derive(Debug, PartialEq, Eq)]
struct PlannedSequence {
    name: String,
    pages: Vec<u32>,
    last_page_tokens: u32,
}

/// What a snapshot is to take.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) pages: Vec<PlannedPage>,
    sequences: Vec<PlannedSequence>,
    page_tokens: u32,
}

impl Plan {
    /// One sequence, each page the child of the one before.
    pub(super) fn of_chain(name: &str, chain: &[PageOutline], page_tokens: u32) -> Plan {
        let pages = chain.iter().enumerate();
        let pages = pages.map(|(at, page)| PlannedPage {
            hash: page.hash,
            parent: at.checked_sub(1).map(|before| before as u32),
        });
        let pages: Vec<PlannedPage> = pages.collect();
        let sequence = chain.last().map(|last| PlannedSequence {
            name: name.to_owned(),
            pages: (0..chain.len() as u32).collect(),
            last_page_tokens: tokens_in(last, page_tokens),
        });
        Plan { pages, sequences: sequence.into_iter().collect(), page_tokens }
    }

    /// All these pages, and the sessions that end among them. A partial tail is taken where a session ends with it: nobody else can
    /// make use of one. Pages that came or went while they were told, with what hangs on them, are left out.
    pub(super) fn of_all(
        mut all: Vec<PageOutline>,
        sessions: &[(String, Vec<PageOutline>)],
        page_tokens: u32,
    ) -> Plan {
        let ends: HashSet<BlockHash> =
            sessions.iter().filter_map(|(_, chain)| chain.last()).map(|page| page.hash).collect();
        all.retain(|page| page.tail_tokens == 0 || ends.contains(&page.hash));
        let mut children: HashMap<Option<BlockHash>, Vec<BlockHash>> = HashMap::new();
        for page in &all {
            children.entry(page.parent).or_default().push(page.hash);
        }
        let (mut pages, mut places) = (Vec::with_capacity(all.len()), HashMap::with_capacity(all.len()));
        let mut next: Vec<(BlockHash, Option<u32>)> =
            children.remove(&None).unwrap_or_default().into_iter().map(|root| (root, None)).collect();
        // From the end of `next`: a child follows its parent at once, so that what is read together was written together.
        while let Some((hash, parent)) = next.pop() {
            let place = pages.len() as u32;
            pages.push(PlannedPage { hash, parent });
            places.insert(hash, place);
            let hanging = children.remove(&Some(hash)).unwrap_or_default();
            next.extend(hanging.into_iter().map(|child| (child, Some(place))));
        }
        let sequence = |(name, chain): &(String, Vec<PageOutline>)| {
            let own: Vec<u32> = chain.iter().map_while(|page| places.get(&page.hash).copied()).collect();
            let last = chain.get(own.len().checked_sub(1)?)?;
            let last_page_tokens = tokens_in(last, page_tokens);
            Some(PlannedSequence { name: name.clone(), pages: own, last_page_tokens })
        };
        let sequences = sessions.iter().filter_map(sequence).collect();
        Plan { pages, sequences, page_tokens }
    }

    /// Fails unless the token ids are those of sequences of the plan, and enough.
    pub(super) fn check_tokens(&self, tokens: &TokensOf) -> Result<(), Error> {
        for (name, ids) in tokens {
            let sequence = self.sequences.iter().find(|sequence| sequence.name == *name);
            let sequence = sequence.ok_or_else(|| {
                Error::invalid(format!(
                    "tokens: no sequence called {name:?} is captured; it may have no page yet"
                ))
            })?;
            let wanted = self.tokens_of(sequence.pages.len(), sequence.last_page_tokens);
            if (ids.len() as u64) < wanted {
                let text =
                    format!("tokens: {} ids for {name:?}, whose pages hold {wanted} tokens", ids.len());
                return Err(Error::invalid(text));
            }
        }
        Ok(())
    }

    /// The sequences of the pages that were taken: for each planned page its number in the snapshot, if it is there.
    pub(super) fn sequences(self, taken: &[Option<u32>], tokens: &mut TokensOf) -> Vec<Sequence> {
        let mut sequences = Vec::with_capacity(self.sequences.len());
        for sequence in &self.sequences {
            let taken = |page: &u32| taken.get(*page as usize).copied().flatten();
            let pages: Vec<u32> = sequence.pages.iter().map_while(taken).collect();
            if pages.is_empty() {
                continue;
            }
            let whole = pages.len() == sequence.pages.len();
            let last_page_tokens = if whole { sequence.last_page_tokens } else { self.page_tokens };
            let mut ids = tokens.remove(&sequence.name);
            if let Some(ids) = &mut ids {
                ids.truncate(self.tokens_of(pages.len(), last_page_tokens) as usize);
            }
            sequences.push(Sequence { id: sequence.name.clone(), pages, last_page_tokens, tokens: ids });
        }
        sequences
    }

    fn tokens_of(&self, pages: usize, last_page_tokens: u32) -> u64 {
        let before = (pages as u64).saturating_sub(1) * u64::from(self.page_tokens);
        before + u64::from(last_page_tokens)
    }
}

fn tokens_in(page: &PageOutline, page_tokens: u32) -> u32 {
    if page.tail_tokens > 0 { page.tail_tokens } else { page_tokens }
}

#[cfg(test)]
mod tests {
    use super::{Plan, TokensOf};
    use turnkv_pool::PageOutline;
    use turnkv_proto::BlockHash;

    fn page(hash: u8, parent: u8, tail_tokens: u32) -> PageOutline {
        let parent = (parent > 0).then_some(BlockHash([parent; 32]));
        PageOutline { hash: BlockHash([hash; 32]), parent, tail_tokens }
    }

    #[test]
    fn a_sequence_ends_before_the_first_page_that_is_gone() {
        let chain = [page(1, 0, 0), page(2, 1, 0), page(3, 2, 5)];
        let ids = TokensOf::from([("s".to_owned(), (0..40).collect())]);
        for (taken, pages, last, tokens) in [
            (vec![Some(0), Some(1), Some(2)], 3, 5, 37),
            (vec![Some(0), Some(1), None], 2, 16, 32),
            (vec![Some(0), None, None], 1, 16, 16),
        ] {
            let plan = Plan::of_chain("s", &chain, 16);
            plan.check_tokens(&ids).unwrap();
            let sequences = plan.sequences(&taken, &mut ids.clone());
            assert_eq!((sequences[0].pages.len(), sequences[0].last_page_tokens), (pages, last));
            assert_eq!(sequences[0].tokens.as_ref().unwrap().len(), tokens);
        }
        let plan = Plan::of_chain("s", &chain, 16);
        assert!(plan.check_tokens(&TokensOf::from([("s".to_owned(), vec![0; 36])])).is_err());
        assert!(plan.check_tokens(&TokensOf::from([("t".to_owned(), vec![0; 40])])).is_err());
        assert!(plan.sequences(&[None, None, None], &mut ids.clone()).is_empty());
    }

    #[test]
    fn a_tree_has_parents_first_and_tails_of_sessions_only() {
        let all = vec![
            page(5, 4, 0), // its parent went meanwhile
            page(3, 2, 7), // a tail that no session ends with
            page(2, 1, 0),
            page(1, 0, 0),
            page(6, 1, 9),
        ];
        let sessions = [
            ("a".to_owned(), vec![page(1, 0, 0), page(6, 1, 9)]),
            ("b".to_owned(), vec![page(1, 0, 0), page(2, 1, 0), page(8, 2, 0)]),
            ("c".to_owned(), vec![page(9, 0, 0)]),
        ];
        let plan = Plan::of_all(all, &sessions, 16);
        assert_eq!(plan.pages.len(), 3);
        for (at, page) in plan.pages.iter().enumerate() {
            assert!(page.parent.is_none_or(|parent| (parent as usize) < at));
        }
        let taken: Vec<Option<u32>> = (0..3).map(Some).collect();
        let sequences = plan.sequences(&taken, &mut TokensOf::new());
        let told: Vec<_> =
            sequences.iter().map(|one| (one.id.as_str(), one.pages.len(), one.last_page_tokens)).collect();
        assert_eq!(told, [("a", 2, 9), ("b", 2, 16)]);
    }
}
