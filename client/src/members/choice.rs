//! Which member is asked next. Owns: the link to each of those that the address names, and the order. Must not know: verbs.

use super::learned::LearnedMembers;
use super::sessions::SessionHomes;
use crate::config::{Address, ClientConfig, ConfigError};
use crate::embedded::Embedded;
use crate::link::Link;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::task::JoinHandle;
use turnkv_proto::{NamespaceId, wire};

#[derive(Debug)]
pub(crate) struct Members {
    config: ClientConfig,
    /// Those that the address names, in its order.
    listed: Vec<Arc<Link>>,
    learned: Mutex<LearnedMembers>,
    sessions: Mutex<SessionHomes>,
    /// The task that follows them: it ends with its runtime, and the next call begins another.
    pub(super) follower: Mutex<Option<JoinHandle<()>>>,
}

impl Members {
    pub(crate) fn new(config: ClientConfig) -> Result<Members, ConfigError> {
        config.check()?;
        let mut listed = Vec::new();
        match &config.address {
            Some(text) => {
                for address in Address::parse_list(text)? {
                    listed.push(Arc::new(Link::new(&config, address, None)?));
                }
            }
            None => {
                let embedded = Embedded::new(&config.embedded)?;
                let address = Address::unix(embedded.socket().to_path_buf())?;
                listed.push(Arc::new(Link::new(&config, address, Some(embedded))?));
            }
        }
        Ok(Members {
            config,
            listed,
            learned: Mutex::default(),
            sessions: Mutex::default(),
            follower: Mutex::default(),
        })
    }

    /// Whether there is more than one to go to.
    pub(crate) fn is_list(&self) -> bool {
        self.listed.len() > 1
    }

    /// Whether a turn goes to where its session is at home.
    pub(crate) fn follows_homes(&self) -> bool {
        self.is_list() && self.config.follow_homes
    }

    /// Where calls go that name neither a namespace nor a session.
    pub(crate) fn usual(&self) -> Arc<Link> {
        self.next(&NamespaceId([0; 32]), &[]).unwrap_or_else(|| self.first())
    }

    /// The first that the address names.
    pub(crate) fn first(&self) -> Arc<Link> {
        Arc::clone(&self.listed[0])
    }

    /// Members that are known to be in the cluster.
    pub(crate) fn known(&self) -> usize {
        self.learned.lock().known()
    }

    /// The first that is well and not asked yet: in the order of the list, so that all processes of an engine go to the same one, and
    /// come back to it; then of those beyond the list; then of those that take nothing new, which is better than none. Where none is
    /// well, the first of the list.
    pub(crate) fn next(&self, namespace: &NamespaceId, asked: &[Arc<Link>]) -> Option<Arc<Link>> {
        let is_new = |link: &&Arc<Link>| !is_among(link, asked);
        if !self.is_list() {
            return self.listed.iter().find(is_new).cloned();
        }
        let mut learned = self.learned.lock();
        let served = self.listed.iter().filter(is_new).find(|link| learned.serves(link) && link.is_well());
        if let Some(link) = served {
            return Some(Arc::clone(link));
        }
        let mut beyond = |serves| {
            learned.ranked(namespace, serves).into_iter().find_map(|address| {
                let link = self.open(&mut learned, &address);
                link.filter(|link| link.is_well() && !is_among(link, asked))
            })
        };
        if let Some(link) = beyond(true) {
            return Some(link);
        }
        let left = || self.listed.iter().filter(is_new);
        // One that lost most of the others says that it is away: of them it may be the only one left.
        left()
            .find(|link| link.is_well())
            .cloned()
            .or_else(|| beyond(false))
            .or_else(|| left().next().cloned())
    }

    /// Where another member is that one of them names, unless it cannot be reached as they are, or is sick.
    pub(crate) fn named(&self, member: &wire::Member) -> Option<Arc<Link>> {
        let address = self.member_address(&member.endpoint)?;
        self.open(&mut self.learned.lock(), &address).filter(|link| link.is_well())
    }

    /// Where the last turn of a session began through this client.
    pub(crate) fn place_of(&self, namespace: &NamespaceId, session: &str) -> Option<Arc<Link>> {
        self.is_list().then(|| self.sessions.lock().get(namespace, session)).flatten()
    }

    /// A session is there.
    pub(crate) fn note_place(&self, namespace: &NamespaceId, session: &str, link: &Arc<Link>) {
        if self.is_list() {
            self.sessions.lock().note(namespace, session, link);
        }
    }

    /// Whether new pages are taken there, as far as is known.
    pub(crate) fn serves(&self, link: &Link) -> bool {
        self.learned.lock().serves(link)
    }

    /// One of them says who there is.
    pub(super) fn learn(&self, reply: &wire::MembersReply) {
        let members = reply.members.iter().filter_map(|member| {
            let serves = member.state() == wire::MemberState::Serving;
            Some((self.member_address(&member.endpoint)?, serves))
        });
        self.learned.lock().learn(members);
    }

    /// Those that calls pass by until they have answered again.
    pub(super) fn sick(&self) -> Vec<Arc<Link>> {
        let learned = self.learned.lock();
        let all = self.listed.iter().chain(learned.links());
        all.filter(|link| !link.is_well()).cloned().collect()
    }

    fn open(&self, learned: &mut LearnedMembers, address: &Address) -> Option<Arc<Link>> {
        let listed = self.listed.iter().find(|link| link.address == *address);
        listed.cloned().or_else(|| learned.open(&self.config, address))
    }

    fn member_address(&self, endpoint: &str) -> Option<Address> {
        let address = Address::parse(endpoint).ok()?;
        address.is_member_like(&self.listed[0].address).then_some(address)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get_mut().take() {
            follower.abort();
        }
    }
}

/// Whether it is one of these.
pub(crate) fn is_among(link: &Arc<Link>, some: &[Arc<Link>]) -> bool {
    some.iter().any(|other| Arc::ptr_eq(link, other))
}

#[cfg(test)]
mod tests;
