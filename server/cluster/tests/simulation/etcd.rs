//! What etcd holds of members, and how it fails. Owns: keys under leases, high-water marks of incarnations. Must not know: members.

use crate::random::Random;
use std::collections::BTreeMap;
use turnkv_cluster::{Incarnation, Member, MemberId, Observation};

/// Milliseconds after which a key that was not put again is gone.
const LEASE_MS: u64 = 3500;

/// How it fails.
#[derive(Clone, Debug)]
pub(crate) enum EtcdFault {
    None,
    Down,
    /// It answers that there is nobody.
    Empty,
    /// It answers with some of the members.
    Halved,
    /// It answers with what was once.
    Stale(Vec<Member>),
}

/// The store.
pub(crate) struct Etcd {
    keys: BTreeMap<MemberId, (Member, u64)>,
    marks: BTreeMap<MemberId, Incarnation>,
    pub(crate) fault: EtcdFault,
}

impl Etcd {
    pub(crate) fn new() -> Etcd {
        Etcd { keys: BTreeMap::new(), marks: BTreeMap::new(), fault: EtcdFault::None }
    }

    /// The incarnation of a new life; none: nobody joins while it is down.
    pub(crate) fn next_life(&mut self, id: MemberId) -> Option<Incarnation> {
        if matches!(self.fault, EtcdFault::Down) {
            return None;
        }
        let mark = self.marks.entry(id).or_insert(Incarnation(0));
        mark.0 += 1;
        Some(*mark)
    }

    /// The least incarnation of its next life: higher than the one that others have heard of.
    pub(crate) fn raise(&mut self, id: MemberId, latest: Incarnation) {
        let mark = self.marks.entry(id).or_insert(latest);
        *mark = latest.max(*mark);
    }

    pub(crate) fn put(&mut self, member: Member, now: u64) {
        let over = self.marks.get(&member.id).is_some_and(|mark| member.incarnation < *mark);
        if !over && !matches!(self.fault, EtcdFault::Down) {
            self.keys.insert(member.id, (member, now + LEASE_MS));
        }
    }

    /// Everything is lost, marks included: the store was set up anew.
    pub(crate) fn wipe(&mut self) {
        (self.keys, self.marks) = (BTreeMap::new(), BTreeMap::new());
    }

    pub(crate) fn members(&self, now: u64) -> Vec<Member> {
        self.keys.values().filter(|(_, until)| now < *until).map(|(member, _)| *member).collect()
    }

    pub(crate) fn observe(&self, now: u64, random: &mut Random) -> Observation {
        Observation::Members(match &self.fault {
            EtcdFault::Down => return Observation::Unreachable,
            EtcdFault::None => self.members(now),
            EtcdFault::Empty => Vec::new(),
            EtcdFault::Halved => self.members(now).into_iter().filter(|_| random.chance(400)).collect(),
            EtcdFault::Stale(members) => members.clone(),
        })
    }
}
