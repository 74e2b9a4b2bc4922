//! The table of leases against a plain list: who holds what, which of them is overdue first, and what it all adds up to.

use super::counts::{Holding, UserHolding};
use super::*;
use proptest::prelude::*;

const SLOT_BYTES: u64 = 4096;
const CLIENTS: u64 = 4;
/// How long each kind lives: all of a kind live equally long.
const LIVES_MS: [Now; 5] = [150, 100, 100, 150, 150];
const KINDS: [LeaseKind; 5] =
    [LeaseKind::Read, LeaseKind::Write, LeaseKind::Quarantined, LeaseKind::Held, LeaseKind::Unheard];

/// A lease, as whoever has it would say.
#[derive(Clone, Debug)]
struct Plain {
    id: LeaseId,
    client: ClientId,
    kind: LeaseKind,
    deadline: Now,
    positions: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Op {
    Insert { client: u64, kind: usize, items: u32 },
    Remove(u16),
    Quarantine(u16),
    Fill(u16),
    Renew(u16),
    Silent(u16),
    Grow(u16, u32),
    Take(u16, u8),
    Late(Now),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..CLIENTS, 0usize..2, 1u32..5).prop_map(|(client, kind, items)| Op::Insert { client, kind, items }),
        2 => any::<u16>().prop_map(Op::Remove),
        1 => any::<u16>().prop_map(Op::Quarantine),
        2 => any::<u16>().prop_map(Op::Fill),
        3 => any::<u16>().prop_map(Op::Renew),
        1 => any::<u16>().prop_map(Op::Silent),
        2 => (any::<u16>(), 1u32..4).prop_map(|(at, more)| Op::Grow(at, more)),
        2 => (any::<u16>(), any::<u8>()).prop_map(|(at, some)| Op::Take(at, some)),
        2 => (1u64..60).prop_map(Op::Late),
    ]
}

/// Clients 0 and 1 are of one user.
fn user(client: u64) -> UserId {
    UserId(client.max(1))
}

struct World {
    leases: Leases,
    /// In the order in which each came to its kind.
    plain: Vec<Plain>,
    stale: Vec<LeaseId>,
    now: Now,
}

impl World {
    fn new() -> World {
        let mut leases = Leases::default();
        (0..CLIENTS).for_each(|client| leases.introduce(ClientId(client), user(client)));
        World { leases, plain: Vec::new(), stale: Vec::new(), now: 0 }
    }

    fn pick(&self, which: u16, is: impl Fn(LeaseKind) -> bool) -> Option<usize> {
        let some: Vec<usize> = (0..self.plain.len()).filter(|at| is(self.plain[*at].kind)).collect();
        (!some.is_empty()).then(|| some[usize::from(which) % some.len()])
    }

    /// A lease becomes the last one of a kind.
    fn turn(&mut self, at: usize, kind: LeaseKind, lives: bool) {
        let mut plain = self.plain.remove(at);
        plain.kind = kind;
        plain.deadline = if lives { self.now + LIVES_MS[kind as usize] } else { plain.deadline };
        self.plain.push(plain);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert { client, kind, items } => self.insert(client, KINDS[kind], items),
            Op::Remove(which) => {
                let Some(at) = self.pick(which, |_| true) else { return };
                let gone = self.plain.remove(at);
                let removed = self.leases.remove(gone.id).expect("it is there");
                assert_eq!(positions(&removed.items), gone.positions);
                self.stale.push(gone.id);
            }
            Op::Quarantine(which) => {
                let Some(at) = self.pick(which, |kind| kind == LeaseKind::Write) else { return };
                assert!(self.leases.quarantine(self.plain[at].id).is_some());
                self.turn(at, LeaseKind::Quarantined, false);
            }
            Op::Fill(which) => {
                let Some(at) = self.pick(which, |kind| kind == LeaseKind::Write) else { return };
                self.leases.keep_filling(self.plain[at].id, self.now + LIVES_MS[LeaseKind::Write as usize]);
                self.turn(at, LeaseKind::Write, true);
            }
            Op::Renew(which) => {
                let Some(at) = self.pick(which, |kind| !kind.is_write()) else { return };
                self.leases.renew(self.plain[at].id, self.now + LIVES_MS[LeaseKind::Held as usize]);
                self.turn(at, LeaseKind::Held, true);
            }
            Op::Silent(which) => {
                let Some(at) = self.pick(which, |kind| kind == LeaseKind::Held) else { return };
                self.leases.mark_unheard(self.plain[at].id);
                self.turn(at, LeaseKind::Unheard, false);
            }
            Op::Grow(which, more) => self.grow(which, more),
            Op::Take(which, some) => self.take(which, some),
            Op::Late(by) => self.now += by,
        }
    }

    fn insert(&mut self, client: u64, kind: LeaseKind, items: u32) {
        let positions: Vec<u32> = (0..items).map(|at| 2 * at).collect();
        let item = |position: &u32| LeaseItem { position: *position, slot: *position, page: NO_PAGE };
        let items = positions.iter().map(item).collect();
        let (client, deadline) = (ClientId(client), self.now + LIVES_MS[kind as usize]);
        let (ns, shards, found) = (NamespaceIndex(0, 0), Shards::one(0), false);
        let id =
            self.leases.insert(NewLease { kind, client, ns, shards, deadline, found, items }, SLOT_BYTES);
        assert!(id.0 != 0 && !self.stale.contains(&id), "an id is never given twice");
        self.plain.push(Plain { id, client, kind, deadline, positions });
    }

    fn grow(&mut self, which: u16, more: u32) {
        let Some(at) = self.pick(which, |_| true) else { return };
        let plain = &mut self.plain[at];
        let next = self.leases.get(plain.id, plain.client).expect("it is there").positions;
        assert!(plain.positions.iter().all(|position| *position < next), "no position comes again");
        let new = next..next + more;
        plain.positions.extend(new.clone());
        if plain.kind.is_write() {
            let item = |position: u32| LeaseItem { position, slot: position, page: NO_PAGE };
            self.leases.grow(plain.id, &new.map(item).collect::<Vec<_>>());
        } else {
            self.leases.extend(plain.id, new.collect::<Vec<_>>().into_iter());
        }
    }

    fn take(&mut self, which: u16, some: u8) {
        let Some(at) = self.pick(which, |_| true) else { return };
        let plain = &mut self.plain[at];
        let wanted = |(at, _): &(usize, &u32)| some >> (at % 8) & 1 == 1;
        let mut taken: Vec<u32> =
            plain.positions.iter().enumerate().filter(wanted).map(|(_, position)| *position).collect();
        taken.truncate(plain.positions.len() - 1); // never all of them
        assert_eq!(positions(&self.leases.take_items(plain.id, &taken)), taken);
        plain.positions.retain(|position| !taken.contains(position));
    }

    fn verify(&self) {
        for kind in KINDS {
            // Of those that are overdue, the one whose deadline comes first.
            let overdue = self.plain.iter().find(|plain| plain.kind == kind);
            let overdue = overdue.filter(|plain| plain.deadline < self.now).map(|plain| plain.id);
            assert_eq!(self.leases.overdue(kind, self.now), overdue, "{kind:?}");
        }
        for plain in &self.plain {
            let lease = self.leases.get(plain.id, plain.client).expect("it is there");
            assert_eq!((lease.kind, lease.deadline), (plain.kind, plain.deadline));
            assert_eq!(positions(&lease.items), plain.positions);
            assert!(self.leases.get(plain.id, ClientId(CLIENTS)).is_none(), "it is another's");
            assert_eq!(self.leases.held(plain.id, plain.client).is_ok(), !plain.kind.is_write());
        }
        assert!(
            self.stale
                .iter()
                .all(|id| (0..CLIENTS).all(|client| self.leases.get(*id, ClientId(client)).is_none()))
        );
        for client in (0..CLIENTS).map(ClientId) {
            assert_eq!(
                self.leases.counts().of(client),
                self.holding(|plain| plain.client == client),
                "{client:?}"
            );
            let own = self.holding(|plain| user(plain.client.0) == user(client.0));
            let of_user = UserHolding { leases: own.leases, lasting_bytes: own.lasting_bytes };
            assert_eq!(self.leases.counts().of_user(client), of_user, "{client:?}");
        }
        let (all, counts) = (self.holding(|_| true), self.leases.counts());
        let late = self.holding(|plain| plain.kind.is_quarantined());
        assert_eq!((counts.leases, counts.lasting_bytes), (all.leases, all.lasting_bytes));
        assert_eq!((counts.quarantined, counts.quarantined_bytes), (late.leases, late.leased_bytes));
        assert_eq!(counts.held_bytes, u64::from(all.held) * SLOT_BYTES);
    }

    fn holding(&self, is: impl Fn(&Plain) -> bool) -> Holding {
        let mut sum = Holding::default();
        for plain in self.plain.iter().filter(|plain| is(plain)) {
            let slots = plain.positions.len() as u32;
            let bytes = u64::from(slots) * SLOT_BYTES;
            sum.leases += 1;
            sum.leased += slots;
            sum.leased_bytes += bytes;
            sum.held += if plain.kind.is_held() { slots } else { 0 };
            sum.lasting_bytes += if plain.kind == LeaseKind::Read { 0 } else { bytes };
        }
        sum
    }
}

fn positions(items: &[LeaseItem]) -> Vec<u32> {
    items.iter().map(|item| item.position).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn leases_are_whose_they_are_end_in_order_and_add_up(ops in prop::collection::vec(op(), 1..100)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.verify();
        }
        // A client that is gone leaves nothing, found however few rows are looked at in one go; others keep theirs.
        for client in (0..CLIENTS).map(ClientId) {
            loop {
                let (lease, passed) = world.leases.next_of_gone(client, 3);
                assert!(passed.rows <= 3);
                if let Some(id) = lease {
                    let at = world.plain.iter().position(|plain| plain.id == id).expect("it is there");
                    prop_assert_eq!(world.plain.remove(at).client, client);
                    world.leases.remove(id);
                }
                if passed.all {
                    break;
                }
            }
            world.verify();
            prop_assert_eq!(world.leases.counts().of(client), Holding::default());
        }
        prop_assert_eq!(world.leases.iter().count(), 0);
    }
}

#[test]
fn a_client_keeps_its_user_while_it_holds_anything_and_is_nobodys_after() {
    let mut world = World::new();
    let of = |world: &World| world.leases.counts().user_of(ClientId(3));
    world.insert(3, LeaseKind::Write, 2);
    world.leases.introduce(ClientId(3), UserId(77));
    world.leases.forget(ClientId(3));
    assert_eq!((of(&world), world.leases.counts().is_present(ClientId(3))), (UserId(3), true));
    world.leases.depart(ClientId(3));
    assert!(!world.leases.counts().is_present(ClientId(3)), "it is gone, and its lease is still to end");
    world.verify();
    let id = world.plain.remove(0).id;
    assert!(world.leases.remove(id).is_some() && world.leases.remove(id).is_none(), "once");
    world.leases.forget(ClientId(3));
    assert_eq!(of(&world), UserId::default());
    world.leases.introduce(ClientId(3), UserId(77));
    assert_eq!((of(&world), world.leases.counts().is_present(ClientId(3))), (UserId(77), true));
}
