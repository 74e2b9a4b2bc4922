//! One request as far as its right to be made is concerned. Owns: asking the decision, first for the verb and then for every
//! namespace that the request names: what a door decodes gets its namespaces here only, so no verb can forget to ask. Must not
//! know: doors, messages.

use super::caller::Caller;
use super::grants::Seen;
use super::judge::{Denied, may};
use super::need::Need;
use super::refusals::Refusals;
use std::sync::Arc;
use turnkv_proto::{Error, ErrorKind, NamespaceId};

/// Whose a namespace is.
pub(crate) trait TenantOf: Send + Sync {
    /// The tenant of an open namespace.
    fn tenant_of(&self, namespace: &NamespaceId) -> Result<String, Error>;
}

/// What all guests of one door share.
#[derive(Clone)]
pub(crate) struct Guests {
    tenants: Arc<dyn TenantOf>,
    refusals: Arc<Refusals>,
}

/// A request of a caller that may make it.
#[derive(Clone)]
pub(crate) struct Guest {
    guests: Guests,
    caller: Arc<Caller>,
    need: Need,
    verb: &'static str,
}

impl Guests {
    /// Of the door of this name.
    pub(crate) fn new(door: &'static str, tenants: Arc<dyn TenantOf>) -> Guests {
        Guests { tenants, refusals: Arc::new(Refusals::new(door)) }
    }

    /// A request of this verb; refused where no role of its caller can do it.
    pub(crate) fn admit(&self, caller: &Arc<Caller>, need: Need, verb: &'static str) -> Result<Guest, Error> {
        let mut guest = self.visitor(caller);
        guest.asks(need, verb)?;
        Ok(guest)
    }

    /// A caller names a client of another's: counted and said.
    pub(crate) fn deny_client(&self, caller: &Caller, verb: &'static str) {
        self.refusals.refused(caller, verb, Denied::Client);
    }

    /// Somebody who asks nothing yet.
    pub(crate) fn visitor(&self, caller: &Arc<Caller>) -> Guest {
        Guest { guests: self.clone(), caller: Arc::clone(caller), need: Need::Operator, verb: "nothing" }
    }
}

impl Guest {
    /// Its next request is of this verb; refused where no role of its caller can do it.
    pub(crate) fn asks(&mut self, need: Need, verb: &'static str) -> Result<(), Error> {
        (self.need, self.verb) = (need, verb);
        self.ask(None)
    }

    /// The namespace that a request names.
    pub(crate) fn namespace(&self, id: &[u8]) -> Result<NamespaceId, Error> {
        let id = NamespaceId::parse(id)?;
        // Who may reach every tenant's need not be told whose this one is.
        if let Seen::These(_) = self.caller.seen() {
            self.tenant(&self.guests.tenants.tenant_of(&id)?)?;
        }
        Ok(id)
    }

    /// The same where a request need not name one.
    pub(crate) fn optional_namespace(&self, id: &[u8]) -> Result<Option<NamespaceId>, Error> {
        if id.is_empty() { Ok(None) } else { self.namespace(id).map(Some) }
    }

    /// A tenant that a request names.
    pub(crate) fn tenant(&self, tenant: &str) -> Result<(), Error> {
        self.ask(Some(tenant))
    }

    /// Which tenants a list may tell of.
    pub(crate) fn seen(&self) -> Seen<'_> {
        self.caller.seen()
    }

    fn ask(&self, tenant: Option<&str>) -> Result<(), Error> {
        may(&self.caller, self.need, tenant).map_err(|denied| {
            self.guests.refusals.refused(&self.caller, self.verb, denied);
            let (name, grants, verb) = (self.caller.name(), &self.caller.grants, self.verb);
            let why = match (denied, self.need) {
                (Denied::Tenant, _) => "the namespace is another tenant's",
                (Denied::Client, _) => "the client is another caller's",
                (Denied::Role, Need::Operator) => "it needs the role operator",
                (Denied::Role, Need::Member) => "it needs the role member",
                (Denied::Role, Need::Tenant | Need::Lease) => "it needs the role engine/<tenant>",
            };
            Error::new(
                ErrorKind::PermissionDenied,
                format!("{name} may not {verb}: {why}; granted is {grants}"),
            )
        })
    }
}

#[cfg(any(test, feature = "simulation"))]
impl Guest {
    /// Somebody who may do everything.
    pub(crate) fn of_everything() -> Guest {
        struct Nobodys;
        impl TenantOf for Nobodys {
            fn tenant_of(&self, _: &NamespaceId) -> Result<String, Error> {
                Ok(String::new())
            }
        }
        let caller = Arc::new(Caller::new("simulated", super::grants::Grants::operator()));
        Guest { guests: Guests::new("none", Arc::new(Nobodys)), caller, need: Need::Tenant, verb: "any" }
    }
}

#[cfg(test)]
mod tests {
    use super::{Guests, TenantOf};
    use crate::access::{Caller, Grants, Need};
    use std::sync::Arc;
    use turnkv_proto::{Error, ErrorKind, NamespaceId};

    /// Namespaces of the tenant `a`, or of `b`, by their first byte; others are not open.
    struct Two;

    impl TenantOf for Two {
        fn tenant_of(&self, namespace: &NamespaceId) -> Result<String, Error> {
            match namespace.0[0] {
                1 => Ok("a".to_owned()),
                2 => Ok("b".to_owned()),
                _ => Err(Error::new(ErrorKind::NamespaceUnknown, "not open")),
            }
        }
    }

    #[test]
    fn a_namespace_of_another_tenant_is_refused_and_one_that_is_not_open_is_not_found() {
        let guests = Guests::new("test", Arc::new(Two));
        let caller = Arc::new(Caller::new("of a test", Grants::of_words(["engine/a"]).unwrap()));
        let guest = guests.admit(&caller, Need::Tenant, "look").unwrap();
        assert_eq!(guest.namespace(&[1; 32]).unwrap(), NamespaceId([1; 32]));
        let denied = guest.namespace(&[2; 32]).unwrap_err();
        assert_eq!(denied.kind, ErrorKind::PermissionDenied);
        assert!(denied.message.contains("another tenant") && denied.message.contains("engine/a"), "{denied}");
        assert_eq!(guest.namespace(&[3; 32]).unwrap_err().kind, ErrorKind::NamespaceUnknown);
        assert_eq!(guest.namespace(&[1; 31]).unwrap_err().kind, ErrorKind::Invalid);
        let refused = guests.admit(&caller, Need::Operator, "drain").err().unwrap();
        assert!(refused.message.contains("of a test may not drain: it needs the role operator"), "{refused}");
    }
}
