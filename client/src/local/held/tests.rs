//! The books of held leases against a plain list of slots, over servers that come and go.

use super::super::writes::Account;
use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names memory that no other test has: accounts are the process's.
pub(in crate::local) fn some_memory() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What is mapped of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// Under this lease of the server that answered last.
    Held(u64),
    /// That server is still to be asked for it.
    Left,
    Orphan,
}

/// One slot that this process has mapped.
#[derive(Debug, Clone, Copy)]
struct MappedSlot {
    name: HeldName,
    position: u32,
    stands: Stands,
    memory: u64,
}

/// The books, and what they should say.
struct Books {
    books: HeldLeases,
    slots: Vec<MappedSlot>,
    memory: u64,
    account: Arc<Account>,
    next_lease: u64,
}

fn slots(positions: std::ops::Range<u32>) -> BTreeMap<u32, wire::SlotRef> {
    positions.map(|at| (at, wire::SlotRef { slab: 1, generation: 1, offset: at.into() })).collect()
}

impl Books {
    fn new() -> Books {
        let memory = some_memory();
        let account = Account::of(memory, 1).unwrap();
        let books = HeldLeases { instance: 1, ..HeldLeases::default() };
        Books { books, slots: Vec::new(), memory, account, next_lease: 0 }
    }

    fn hold(&mut self, count: u32) -> HeldName {
        self.next_lease += 1;
        let name = (self.books.instance, self.next_lease);
        let of = HeldSlots { namespace: [1; 32], shard: 0, reserved: true, slots: slots(0..count) };
        let mapping = vec![self.account.begin_mapping()];
        let now = Some(self.next_lease);
        let lease = HeldLease { of, now, orphans: BTreeMap::new(), is_left: false, mapping };
        self.books.leases.insert(name, lease);
        let stands = Stands::Held(self.next_lease);
        let slot = |position| MappedSlot { name, position, stands, memory: self.memory };
        self.slots.extend((0..count).map(slot));
        name
    }

    /// A server of a life that nobody had before; its memory is the one before it, or its own.
    fn move_on(&mut self, same_memory: bool) {
        if !same_memory {
            self.memory = some_memory();
        }
        let instance = self.books.instance + 1;
        self.books.move_to(instance, self.memory);
        self.account = Account::of(self.memory, instance).unwrap();
        self.next_lease = 0;
        // An orphan's lease goes on counting as mapped, so what is left of it is asked for again.
        for slot in &mut self.slots {
            let is_left = slot.memory == self.memory && slot.stands != Stands::Orphan;
            slot.stands = if is_left { Stands::Left } else { Stands::Orphan };
        }
    }

    /// The server says which of the positions that it was asked for it has, after some were given up meanwhile.
    fn take(&mut self, name: HeldName, asked: &HeldSlots, refused: &[u32], given_up: &[u32]) {
        if !given_up.is_empty() {
            self.give_up(name, given_up);
        }
        let positions: Vec<u32> = asked.slots.keys().copied().filter(|at| !refused.contains(at)).collect();
        self.next_lease += 1;
        let lease = if positions.is_empty() { 0 } else { self.next_lease };
        let reply = wire::TakeOverReply { lease, lease_ms: 1, positions: positions.clone(), no_room: false };
        let released = self.books.taken(name, &reply, self.account.begin_mapping());
        let here = |slot: &MappedSlot| slot.name == name && slot.stands == Stands::Left;
        let kept: Vec<u32> = self.slots.iter().filter(|slot| here(slot)).map(|slot| slot.position).collect();
        let expected: Vec<u32> = positions.iter().copied().filter(|at| !kept.contains(at)).collect();
        assert_eq!(released, expected, "what was given up meanwhile is released, and nothing else");
        for slot in self.slots.iter_mut().filter(|slot| here(slot)) {
            let is_taken = positions.contains(&slot.position);
            slot.stands = if is_taken { Stands::Held(lease) } else { Stands::Orphan };
        }
    }

    /// Positions none: all.
    fn give_up(&mut self, name: HeldName, positions: &[u32]) {
        let told = self.books.give_up(name, positions);
        let is_it = |slot: &MappedSlot| {
            slot.name == name && (positions.is_empty() || positions.contains(&slot.position))
        };
        let (gone, rest): (Vec<_>, Vec<_>) = self.slots.iter().copied().partition(is_it);
        let of_server = |slot: &MappedSlot| match slot.stands {
            Stands::Held(lease) if slot.name == name => Some((lease, slot.position)),
            _ => None,
        };
        let ended: Vec<(u64, u32)> = gone.iter().filter_map(of_server).collect();
        let stays = rest.iter().any(|slot| of_server(slot).is_some());
        let expected = ended.first().map(|(lease, _)| {
            let positions = ended.iter().map(|(_, position)| *position);
            (*lease, if stays { positions.collect() } else { Vec::new() })
        });
        assert_eq!(told, expected, "the server is told of what it has, and of nothing else");
        self.slots = rest;
    }

    fn check(&self) {
        let mut expected: BTreeMap<HeldName, Vec<(u32, Stands)>> = BTreeMap::new();
        for slot in &self.slots {
            expected.entry(slot.name).or_default().push((slot.position, slot.stands));
        }
        let names: Vec<_> = self.books.leases.keys().collect();
        assert_eq!(names, expected.keys().collect::<Vec<_>>(), "leases of which nothing is mapped are gone");
        for (name, slots) in &expected {
            let lease = &self.books.leases[name];
            let orphans = slots.iter().filter(|(_, stands)| *stands == Stands::Orphan);
            assert!(orphans.map(|(at, _)| at).eq(lease.orphans.keys()), "{name:?}: {slots:?}");
            let others: Vec<_> = slots.iter().filter(|(_, stands)| *stands != Stands::Orphan).collect();
            assert!(others.iter().map(|(at, _)| at).eq(lease.of.slots.keys()), "{name:?}: {slots:?}");
            let now = others.iter().find_map(|(_, stands)| match stands {
                Stands::Held(lease) => Some(*lease),
                _ => None,
            });
            assert_eq!(lease.now, now, "{name:?}: {slots:?}");
            if let Some(now) = now {
                assert_eq!(self.books.name_of(now), Some(*name));
            }
        }
        let renewed = self.slots.iter().any(|slot| matches!(slot.stands, Stands::Held(_)));
        let left: Vec<_> = self.books.left().into_iter().map(|(name, _)| name).collect();
        assert!(!renewed || self.books.is_active(), "somebody renews what is held");
        let is_left =
            |name: &HeldName| self.slots.iter().any(|slot| slot.name == *name && slot.stands == Stands::Left);
        let expected: Vec<_> = expected.keys().copied().filter(is_left).collect();
        let asked: Vec<_> = left.into_iter().filter(|name| is_left(name)).collect();
        assert_eq!(asked, expected, "whatever is left is asked for");
        let is_before =
            |slot: &MappedSlot| slot.memory == self.memory && !matches!(slot.stands, Stands::Held(_));
        let all_mapped = !self.slots.iter().any(is_before);
        assert_eq!(self.account.has_all_mapped(), all_mapped, "{:?}", self.slots);
    }
}

/// What happens to the books, with numbers that choose among what there is.
#[derive(Debug, Clone)]
enum Event {
    Hold(u32),
    More(usize),
    GiveUp(usize, u8),
    Move(bool),
    Take(usize, u8, u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (1..5u32).prop_map(Event::Hold),
        (0..4usize).prop_map(Event::More),
        (0..4usize, any::<u8>()).prop_map(|(lease, bits)| Event::GiveUp(lease, bits)),
        prop::bool::weighted(0.8).prop_map(Event::Move),
        (0..4usize, any::<u8>(), any::<u8>()).prop_map(|(lease, no, gone)| Event::Take(lease, no, gone)),
        (0..4usize).prop_map(|lease| Event::Take(lease, 0, 0)),
    ];
    prop::collection::vec(event, 1..30)
}

fn chosen(bits: u8, positions: impl Iterator<Item = u32>) -> Vec<u32> {
    positions.filter(|at| bits & (1 << (at % 8)) != 0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_servers_come_and_go_the_books_say_what_a_plain_list_does(events in events()) {
        let mut books = Books::new();
        for event in events {
            match event {
                Event::Hold(count) => drop(books.hold(count)),
                Event::More(lease) => {
                    // As `hold_more` does: only to a lease that is held whole.
                    let whole = books.books.leases.iter_mut().filter(|(_, lease)| lease.orphans.is_empty());
                    let mut whole = whole.filter(|(_, lease)| lease.now.is_some());
                    if let Some((name, lease)) = whole.nth(lease) {
                        let at = lease.of.slots.keys().max().map_or(0, |last| last + 1);
                        lease.of.slots.extend(slots(at..at + 1));
                        let stands = Stands::Held(lease.now.unwrap());
                        let slot = MappedSlot { name: *name, position: at, stands, memory: books.memory };
                        books.slots.push(slot);
                        books.slots.sort_by_key(|slot| (slot.name, slot.position));
                    }
                }
                Event::GiveUp(lease, bits) => {
                    if let Some(name) = books.books.leases.keys().nth(lease).copied() {
                        let of = books.slots.iter().filter(|slot| slot.name == name);
                        let positions = chosen(bits, of.map(|slot| slot.position));
                        books.give_up(name, &positions);
                    }
                }
                Event::Move(same_memory) => books.move_on(same_memory),
                Event::Take(lease, refused, given_up) => {
                    if let Some((name, asked)) = books.books.left().into_iter().nth(lease) {
                        let of = books.slots.iter().filter(|slot| slot.name == name);
                        let given_up = chosen(given_up, of.map(|slot| slot.position));
                        let refused = chosen(refused, asked.slots.keys().copied());
                        books.take(name, &asked, &refused, &given_up);
                    }
                }
            }
            books.check();
        }
    }
}

#[test]
fn an_answer_for_a_lease_that_was_given_up_meanwhile_gives_all_of_it_back() {
    let mut books = Books::new();
    let name = books.hold(3);
    books.move_on(true);
    let (_, asked) = books.books.left().remove(0);
    books.take(name, &asked, &[], &[0, 1, 2]);
    books.check();
    assert!(!books.books.is_active() && books.books.leases.is_empty());
}

/// Its lease at the new server is over as soon as it is given: renewed, it would count as lost.
#[test]
fn a_lease_of_which_only_orphans_are_left_is_under_none_of_the_servers() {
    let mut books = Books::new();
    let name = books.hold(3);
    books.move_on(true);
    let (_, asked) = books.books.left().remove(0);
    books.take(name, &asked, &[2], &[]);
    books.check();
    books.move_on(true);
    let (_, asked) = books.books.left().remove(0);
    assert_eq!(asked.slots.len(), 2, "an orphan is not asked for again");
    books.take(name, &asked, &[], &[0, 1]);
    books.check();
    assert_eq!(books.books.leases[&name].now, None);
    assert!(!books.books.is_active(), "there is nothing to renew");
}

/// What they were mapped from before is no matter then: what is left is under a lease of the server that answers now.
#[test]
fn once_the_orphans_are_given_up_a_server_can_be_told_that_nothing_else_is_mapped() {
    let mut books = Books::new();
    let name = books.hold(3);
    books.move_on(true);
    let (_, asked) = books.books.left().remove(0);
    books.take(name, &asked, &[1], &[]);
    assert!(!books.account.has_all_mapped(), "the orphan is mapped since the server before");
    books.give_up(name, &[1]);
    books.check();
    assert!(books.account.has_all_mapped() && books.books.leases[&name].now.is_some());
}
