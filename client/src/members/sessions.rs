//! Where sessions are whose turns began through this client. Owns: their bound, and who is forgotten. Must not know: calls.

use crate::limits::SESSION_PLACES_MAX;
use crate::link::Link;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use turnkv_proto::NamespaceId;

type SessionName = (NamespaceId, String);

/// Two generations: what is used goes to the young one, and once that is full the old one is forgotten, which costs a session of it
/// a question. A member that has left is nobody's place.
#[derive(Debug, Default)]
pub(super) struct SessionHomes {
    young: HashMap<SessionName, Weak<Link>>,
    old: HashMap<SessionName, Weak<Link>>,
}

impl SessionHomes {
    pub(super) fn get(&mut self, namespace: &NamespaceId, session: &str) -> Option<Arc<Link>> {
        let name = (*namespace, session.to_owned());
        if let Some(link) = self.young.get(&name) {
            return link.upgrade();
        }
        let link = self.old.remove(&name)?.upgrade()?;
        self.keep(name, &link);
        Some(link)
    }

    pub(super) fn note(&mut self, namespace: &NamespaceId, session: &str, link: &Arc<Link>) {
        self.keep((*namespace, session.to_owned()), link);
    }

    fn keep(&mut self, name: SessionName, link: &Arc<Link>) {
        if self.young.len() >= SESSION_PLACES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, Arc::downgrade(link));
    }
}

#[cfg(test)]
mod tests {
    use super::SessionHomes;
    use crate::config::{Address, ClientConfig};
    use crate::limits::SESSION_PLACES_MAX;
    use crate::link::Link;
    use std::sync::Arc;
    use turnkv_proto::NamespaceId;

    #[test]
    fn those_that_are_used_stay_and_no_more_are_known_than_may_be() {
        let address = Address::Tcp("host".to_owned(), 1);
        let link = Arc::new(Link::new(&ClientConfig::default(), address, None).unwrap());
        let (mut homes, namespace) = (SessionHomes::default(), NamespaceId([1; 32]));
        homes.note(&namespace, "used", &link);
        for session in 0..SESSION_PLACES_MAX * 2 {
            homes.note(&namespace, &session.to_string(), &link);
            assert!(homes.get(&namespace, "used").is_some(), "forgotten after {session} others");
            assert!(homes.young.len() + homes.old.len() <= SESSION_PLACES_MAX);
        }
        assert!(homes.get(&namespace, "0").is_none() && homes.get(&NamespaceId([2; 32]), "used").is_none());
        drop(link);
        assert!(homes.get(&namespace, "used").is_none(), "its member has left");
    }
}
