//! The one decision: may this caller do that to this tenant's? Owns: it, and the words for a refusal. Must not know: verbs,
//! requests.

use super::caller::Caller;
use super::grants::Tenants;
use super::need::Need;

/// Why a caller may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// None of its roles can do it.
    Role,
    /// Its role can, but not to this tenant's.
    Tenant,
    /// Its role can, but not as this client, which is another caller's.
    Client,
}

impl Denied {
    /// Every one.
    pub(super) const ALL: [Denied; 3] = [Denied::Role, Denied::Tenant, Denied::Client];

    /// Its name in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Denied::Role => "role",
            Denied::Tenant => "tenant",
            Denied::Client => "client",
        }
    }
}

/// Whether a caller may do what needs this; with a tenant, to that tenant's. An operator may do everything.
pub(super) fn may(caller: &Caller, need: Need, tenant: Option<&str>) -> Result<(), Denied> {
    if caller.grants.operator {
        return Ok(());
    }
    match (need, &caller.grants.tenants) {
        (Need::Operator, _) => Err(Denied::Role),
        (Need::Member, _) if caller.grants.member => Ok(()),
        (Need::Member, _) => Err(Denied::Role),
        (Need::Tenant | Need::Lease, Tenants::All) => Ok(()),
        (Need::Tenant | Need::Lease, Tenants::These(tenants)) if tenants.is_empty() => Err(Denied::Role),
        (Need::Tenant | Need::Lease, Tenants::These(tenants)) => match tenant {
            Some(tenant) if !tenants.contains(tenant) => Err(Denied::Tenant),
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Denied, may};
    use crate::access::{Caller, Grants, Need};

    fn caller(words: &[&str]) -> Caller {
        Caller::new("of a test", Grants::of_words(words.iter().copied()).unwrap())
    }

    #[test]
    fn every_role_may_what_it_is_for_and_no_more() {
        let (role, tenant) = (Err(Denied::Role), Err(Denied::Tenant));
        type Asked = [Result<(), Denied>; 6];
        let cases: [(&[&str], Asked); 7] = [
            (&[], [role; 6]),
            (&["member"], [role, role, role, role, role, Ok(())]),
            (&["operator"], [Ok(()); 6]),
            (&["engine/*"], [Ok(()), Ok(()), Ok(()), Ok(()), role, role]),
            (&["engine/a"], [Ok(()), tenant, Ok(()), Ok(()), role, role]),
            (&["engine/a", "engine/b", "member"], [Ok(()), Ok(()), Ok(()), Ok(()), role, Ok(())]),
            (&["engine/"], [tenant, tenant, Ok(()), Ok(()), role, role]),
        ];
        for (words, wanted) in cases {
            let caller = caller(words);
            let asked = [
                may(&caller, Need::Tenant, Some("a")),
                may(&caller, Need::Tenant, Some("b")),
                may(&caller, Need::Tenant, None),
                may(&caller, Need::Lease, None),
                may(&caller, Need::Operator, None),
                may(&caller, Need::Member, None),
            ];
            assert_eq!(asked, wanted, "{words:?}");
        }
        assert_eq!(may(&caller(&["engine/"]), Need::Tenant, Some("")), Ok(()), "the tenant without a name");
    }
}
