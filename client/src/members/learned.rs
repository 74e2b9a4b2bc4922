//! Who else is in the cluster. Owns: what one of them told, the links to those that the address does not name, their bound. Must not
//! know: who is asked for what.

use crate::config::{Address, ClientConfig};
use crate::limits::{MEMBER_LINKS_MAX, MEMBERS_KNOWN_MAX};
use crate::link::Link;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use turnkv_proto::NamespaceId;

/// Members as one of them told of them, and the way to those that calls went to.
#[derive(Debug, Default)]
pub(super) struct LearnedMembers {
    /// Whether each takes new pages.
    members: BTreeMap<Address, bool>,
    links: BTreeMap<Address, LearnedLink>,
    /// Counts what was asked for.
    asked: u64,
}

#[derive(Debug)]
struct LearnedLink {
    link: Arc<Link>,
    /// When it was asked for last, by that count.
    asked: u64,
}

impl LearnedMembers {
    pub(super) fn known(&self) -> usize {
        self.members.len()
    }

    /// Whoever is not told of any more has left: its connections end with the calls that are under way there. That nobody is left is
    /// not believed: somebody says so.
    pub(super) fn learn(&mut self, members: impl Iterator<Item = (Address, bool)>) {
        let members: BTreeMap<_, _> = members.take(MEMBERS_KNOWN_MAX).collect();
        if !members.is_empty() {
            self.links.retain(|address, _| members.contains_key(address));
            self.members = members;
        }
    }

    /// Whether a member takes new pages, as far as is known.
    pub(super) fn serves(&self, link: &Link) -> bool {
        self.members.get(&link.address).copied().unwrap_or(true)
    }

    /// Those that take new pages, or that do not, in an order that is the namespace's own: namespaces spread, and the processes of an
    /// engine agree.
    pub(super) fn ranked(&self, namespace: &NamespaceId, serve: bool) -> Vec<Address> {
        let those = self.members.iter().filter(|(_, serves)| **serves == serve).map(|(address, _)| address);
        let mut ranked: Vec<Address> = those.cloned().collect();
        ranked.sort_by_cached_key(|address| {
            let mut hasher = DefaultHasher::new();
            (namespace.0, address.to_string()).hash(&mut hasher);
            hasher.finish()
        });
        ranked
    }

    /// The link to a member; the one that was asked for longest ago makes room.
    pub(super) fn open(&mut self, config: &ClientConfig, address: &Address) -> Option<Arc<Link>> {
        self.asked += 1;
        let asked = self.asked;
        if let Some(known) = self.links.get_mut(address) {
            known.asked = asked;
            return Some(Arc::clone(&known.link));
        }
        let link = Link::new(config, address.clone(), None);
        let link = link.inspect_err(|error| tracing::warn!(%address, %error, "a member cannot be used"));
        let link = Arc::new(link.ok()?);
        if self.links.len() >= MEMBER_LINKS_MAX {
            let longest = self.links.iter().min_by_key(|(_, known)| known.asked);
            let longest = longest.map(|(address, _)| address.clone());
            longest.and_then(|address| self.links.remove(&address));
        }
        self.links.insert(address.clone(), LearnedLink { link: Arc::clone(&link), asked });
        Some(link)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.values().map(|known| &known.link)
    }
}

#[cfg(test)]
mod tests {
    use super::LearnedMembers;
    use crate::config::{Address, ClientConfig};
    use crate::limits::MEMBER_LINKS_MAX;
    use std::sync::Arc;
    use turnkv_proto::NamespaceId;

    fn address(port: u16) -> Address {
        Address::Tcp("host".to_owned(), port)
    }

    #[test]
    fn no_more_links_are_kept_than_may_be_and_none_to_whoever_left() {
        let (mut learned, config) = (LearnedMembers::default(), ClientConfig::default());
        learned.learn((1..200).map(|port| (address(port), port != 7)));
        assert_eq!((learned.known(), learned.ranked(&NamespaceId([1; 32]), true).len()), (199, 198));
        let first = learned.open(&config, &address(1)).unwrap();
        for port in 2..=MEMBER_LINKS_MAX as u16 {
            learned.open(&config, &address(port)).unwrap();
        }
        assert!(Arc::ptr_eq(&first, &learned.open(&config, &address(1)).unwrap()));
        learned.open(&config, &address(150)).unwrap();
        assert_eq!(learned.links().count(), MEMBER_LINKS_MAX);
        assert!(learned.links().all(|link| link.address != address(2)), "asked for longest ago");
        learned.learn([(address(1), false), (address(3), true)].into_iter());
        assert_eq!(learned.links().count(), 2);
        assert!(!learned.serves(&first));
        learned.learn(std::iter::empty());
        assert_eq!(learned.known(), 2);
    }

    #[test]
    fn namespaces_rank_members_each_in_its_own_way() {
        let mut learned = LearnedMembers::default();
        learned.learn((1..50).map(|port| (address(port), true)));
        let ranked = |byte| learned.ranked(&NamespaceId([byte; 32]), true);
        assert_eq!(ranked(1), ranked(1));
        assert_ne!(ranked(1)[0], ranked(2)[0]);
    }
}
