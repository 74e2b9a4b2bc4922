//! Who the members are, as whoever knows them says. Owns: the choice between a list and etcd. Must not know: what to believe of it.

use super::card::MemberCard;
use super::etcd::EtcdMembers;
use super::listed::ListedMembers;
use super::seen::{NewLife, SeenMembers};
use crate::config::{ClusterMembers, ClusterSettings, check_name};
use turnkv_cluster::{Incarnation, MemberId};
use turnkv_proto::Error;

/// Whoever knows the members.
pub(super) enum Membership {
    /// A list of the configuration, and who of it was heard.
    Listed(ListedMembers),
    /// etcd.
    Etcd(Box<EtcdMembers>),
}

impl Membership {
    /// As it is configured.
    pub(super) fn new(settings: &ClusterSettings, unix_ms: u64) -> Result<Membership, String> {
        let own = &settings.own.id;
        Ok(match &settings.members {
            ClusterMembers::Listed(members) => {
                // Nobody says it for all: it is made of the cluster's name.
                Membership::Listed(ListedMembers::new(members, MemberId::of(&settings.name).0))
            }
            ClusterMembers::Etcd { endpoints, tls } => {
                let fresh = MemberId::of(&format!("{own} {unix_ms} {}", std::process::id())).0;
                let etcd = EtcdMembers::new((&settings.name, own), endpoints, tls, fresh)?;
                Membership::Etcd(Box::new(etcd))
            }
        })
    }

    /// In one word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Membership::Listed(_) => "static",
            Membership::Etcd(_) => "etcd",
        }
    }

    /// A life that is to begin now: the first one, or one after the latest that was heard of. None: none is, or it cannot be said
    /// yet which.
    pub(super) fn next_life(
        &self,
        current: Option<Incarnation>,
        after: Incarnation,
        unix_ms: u64,
    ) -> Option<NewLife> {
        match self {
            Membership::Listed(listed) => listed.next_life(current, after, unix_ms),
            Membership::Etcd(etcd) => etcd.next_life(current, after),
        }
    }

    /// Looks who is there.
    pub(super) fn look(&self, own: &MemberCard) -> SeenMembers {
        match self {
            Membership::Listed(listed) => listed.look(own),
            Membership::Etcd(etcd) => etcd.look(),
        }
    }

    /// This member says that it is so from now on. Those of a list hear it with the next greeting.
    pub(super) fn put(&self, own: &MemberCard) {
        if let Membership::Etcd(etcd) = self {
            etcd.put(own);
        }
    }

    /// A member said this of itself, to this one.
    pub(super) fn heard(&self, card: MemberCard) -> Result<(), Error> {
        match self {
            Membership::Listed(listed) => listed.heard(card),
            // It is there if etcd says so; what it says is judged by its life.
            Membership::Etcd(_) => Ok(()),
        }
    }

    /// A member is gone for good. Whether anything was known of it.
    pub(super) async fn forget(&self, name: &str) -> Result<bool, Error> {
        match self {
            Membership::Listed(_) => {
                Err(Error::invalid("members are those of cluster.members: take it out there, at all of them"))
            }
            Membership::Etcd(etcd) => {
                check_name(name)
                    .map_err(|why| Error::invalid(format!("no member has such a name: {why}")))?;
                etcd.forget(name).await
            }
        }
    }

    /// What goes on all the time.
    pub(super) async fn run(&self) {
        match self {
            Membership::Listed(_) => std::future::pending().await,
            Membership::Etcd(etcd) => etcd.run().await,
        }
    }
}
