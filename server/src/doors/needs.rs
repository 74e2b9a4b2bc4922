//! What each verb needs of its caller, and at which doors it can be asked. Owns: the tables; a verb that is new in the protocol does
//! not compile without a line here. Must not know: callers, how it is decided.

use crate::access::Need;
use crate::connections::Door;
use turnkv_proto::Error;
use turnkv_proto::wire::{Method, Verb};

/// Who can make use of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Whoever is connected.
    Everybody,
    /// Processes of this host: it is about slots, and only they map them. Nobody else's lease would ever be filled.
    Host,
    /// Clients over a network: it is about their rails.
    Network,
}

impl Reach {
    /// Whether a verb can be asked at a door.
    ///
    /// # Errors
    /// It cannot, and what can be asked there.
    pub(crate) fn check(self, door: Door, verb: &str) -> Result<(), Error> {
        let why = match (self, door.is_network()) {
            (Reach::Host, true) => {
                "does not go over a network: slots are mapped on the server's own host; use the inline or the remote verbs"
            }
            (Reach::Network, false) => "is for the network: this is the local socket",
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("{verb} {why}")))
    }
}

/// Of a gRPC method.
pub(crate) fn rule_of_method(method: Method) -> (Need, Reach) {
    match method {
        Method::PoolBeginOffload | Method::PoolBeginReload => (Need::Tenant, Reach::Host),
        Method::PoolCommitOffload | Method::PoolAbortOffload | Method::PoolEndReload => {
            (Need::Lease, Reach::Host)
        }
        Method::PoolOpenNamespace
        | Method::PoolLookup
        | Method::PoolOffload
        | Method::PoolReload
        | Method::SessionsBeginTurn
        | Method::SessionsEndTurn
        | Method::SessionsFork
        | Method::SessionsSupersede
        | Method::SessionsClose
        | Method::SessionsPrefetch
        | Method::SessionsList
        | Method::SessionsDescribe
        | Method::SessionsPin
        | Method::SessionsUnpin
        | Method::SessionsRoute
        | Method::SnapshotsCreate
        | Method::SnapshotsRestore
        | Method::SnapshotsList
        | Method::SnapshotsDescribe
        | Method::SnapshotsVerify
        | Method::SnapshotsFork
        | Method::SnapshotsDelete
        | Method::SnapshotsCollect
        | Method::ClusterFind
        | Method::ClusterWatchMembers
        // What an engine's prefill took is the engine's to say.
        | Method::AdminReportPrefill => (Need::Tenant, Reach::Everybody),
        Method::ClusterTell
        | Method::ClusterCountPages
        | Method::ClusterNameSession
        | Method::ClusterNamePrefix
        | Method::ClusterLookAtEngines
        | Method::ClusterTakeSession
        | Method::ClusterHoldPrefix => {
            (Need::Member, Reach::Everybody)
        }
        Method::AdminStats
        | Method::AdminDrain
        | Method::AdminEvict
        | Method::AdminSizeAdvice
        | Method::AdminRecord
        | Method::AdminResume
        | Method::AdminResize
        | Method::AdminUpgrade
        | Method::ClusterStanding
        | Method::ClusterForget
        | Method::ClusterMoveAway
        // They write to, and read from, the server's own host.
        | Method::SnapshotsExport
        | Method::SnapshotsImport => (Need::Operator, Reach::Everybody),
    }
}

/// Of a frame's verb.
pub(crate) fn rule_of_frame(verb: Verb) -> (Need, Reach) {
    match verb {
        Verb::Unspecified | Verb::Hello => (Need::Lease, Reach::Everybody),
        Verb::Lookup => (Need::Tenant, Reach::Everybody),
        Verb::AttachSlab
        | Verb::BeginOffload
        | Verb::BeginReload
        | Verb::Reserve
        | Verb::CommitReserved
        | Verb::TakeOver => (Need::Tenant, Reach::Host),
        Verb::CommitOffload
        | Verb::AbortOffload
        | Verb::EndReload
        | Verb::Renew
        | Verb::Release
        | Verb::Settled => (Need::Lease, Reach::Host),
        Verb::RemoteOffload | Verb::RemoteReload => (Need::Tenant, Reach::Network),
        Verb::OpenRail => (Need::Lease, Reach::Network),
    }
}

#[cfg(test)]
mod tests {
    use super::{rule_of_frame, rule_of_method};
    use crate::access::{Caller, Grants, Guests, Need, TenantOf};
    use std::sync::Arc;
    use turnkv_proto::wire::{Method, Verb};
    use turnkv_proto::{Error, NamespaceId};

    struct Nobodys;

    impl TenantOf for Nobodys {
        fn tenant_of(&self, _: &NamespaceId) -> Result<String, Error> {
            Ok(String::new())
        }
    }

    fn may(words: &[&str], need: Need) -> bool {
        let caller = Caller::new("of a test", Grants::of_words(words.iter().copied()).unwrap());
        Guests::new("test", Arc::new(Nobodys)).admit(&Arc::new(caller), need, "ask").is_ok()
    }

    #[test]
    fn nobody_without_a_grant_may_do_anything() {
        for method in Method::ALL {
            let (need, _) = rule_of_method(*method);
            assert!(!may(&[], need), "{method:?}");
            assert_eq!(may(&["member"], need), need == Need::Member, "{method:?}");
        }
        for verb in (0..).map_while(|number| Verb::try_from(number).ok()) {
            assert!(!may(&[], rule_of_frame(verb).0), "{verb:?}");
        }
    }

    #[test]
    fn admin_and_members_words_are_not_for_engines_but_for_what_these_report_and_nor_are_files_of_the_host() {
        for method in Method::ALL {
            let of_operators = match method {
                Method::AdminReportPrefill | Method::ClusterFind | Method::ClusterWatchMembers => false,
                Method::SnapshotsExport | Method::SnapshotsImport => true,
                _ if method.path().starts_with("/turnkv.v1.Cluster/") => true,
                _ => method.path().starts_with("/turnkv.v1.Admin/"),
            };
            assert_eq!(may(&["engine/*"], rule_of_method(*method).0), !of_operators, "{method:?}");
            assert!(may(&["operator"], rule_of_method(*method).0));
        }
    }
}
