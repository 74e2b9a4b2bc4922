//! The table of sessions, by name, by tenant and idleness, by deadline, by return. Owns: the table and its
//! orders, and who makes way for a new session. Must not know: what the pages of a session are.

use crate::ids::{NamespaceIndex, Now};
use crate::index::tips::TipId;
use crate::limits::{FORGOTTEN_MAX, LATE_SESSIONS_PER_PICK_MAX, ORDER_BYTES, SILENT_TURN_MS};
use crate::sessions::tenants::{Standing, Tenants};
use crate::sessions::walk_back::WalkBack;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use turnkv_proto::{BlockHash, SessionId};

/// Pages by which a session is known that may be continued: an engine may name its last one otherwise in the
/// next turn.
const ENDS: usize = 2;

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) ns: NamespaceIndex,
    pub(crate) id: SessionId,
    pub(crate) turn: u32,
    pub(crate) in_turn: bool,
    pub(crate) priority: u32,
    pub(crate) ttl_ms: u64,
    pub(crate) last_used: Now,
    /// When it is expected back.
    pub(crate) return_at: Option<Now>,
    /// When its prefetch begins, or goes on.
    pub(crate) prefetch_at: Option<Now>,
    /// Leading pages that the prefetch has seen to.
    pub(crate) prefetched: u32,
    /// Where the prefetch's walk is that counts what is in DRAM as used, before anything is read.
    pub(crate) warmed: WalkBack,
    /// Where its list of pages ends; none: it has no pages.
    pub(crate) tip: Option<TipId>,
    /// It is in its first turn, and has not been found to go on from another session's pages.
    pub(crate) may_continue: bool,
    /// Its last full pages, by which a session that continues it is known.
    pub(super) ends: [Option<BlockHash>; ENDS],
    /// Whose it is.
    tenant: u32,
    /// Under which keys the orders know this session; none: they do not yet.
    standing: Option<Standing>,
    deadline_key: Now,
    prefetch_key: Option<Now>,
    expected: bool,
}

/// All sessions.
#[derive(Default)]
pub(crate) struct Sessions {
    table: Vec<Option<Session>>,
    free: Vec<u32>,
    names: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// By tenant, in the order in which they make way.
    tenants: Tenants,
    deadlines: BTreeSet<(Now, u32)>,
    prefetches: BTreeSet<(Now, u32)>,
    /// Sessions of one turn by their last full pages; of several with the same, the latest.
    ends: HashMap<(NamespaceIndex, BlockHash), u32>,
    /// How many each namespace has.
    owned: HashMap<NamespaceIndex, u32>,
    /// Sessions with a time of return.
    expected: u64,
    /// Bytes of all names.
    name_bytes: usize,
    forgotten: Vec<(NamespaceIndex, SessionId)>,
    forgotten_count: u64,
}

impl Sessions {
    pub(crate) fn len(&self) -> u32 {
        self.names.len() as u32
    }

    pub(crate) fn in_turn(&self) -> u64 {
        self.tenants.in_turn() as u64
    }

    /// Sessions that are expected back.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// One past the highest place in the table.
    pub(crate) fn end(&self) -> u32 {
        self.table.len() as u32
    }

    /// Sessions of one namespace.
    pub(crate) fn len_of(&self, ns: NamespaceIndex) -> u32 {
        self.owned.get(&ns).copied().unwrap_or(0)
    }

    /// The session at a place of the table.
    pub(crate) fn get(&self, at: u32) -> Option<&Session> {
        self.table.get(at as usize)?.as_ref()
    }

    /// Names the session at a place of the table.
    pub(crate) fn name_at(&self, at: u32) -> Option<(NamespaceIndex, SessionId)> {
        self.table.get(at as usize)?.as_ref().map(|session| (session.ns, session.id.clone()))
    }

    /// Whose the session at a place of the table is.
    pub(crate) fn namespace_at(&self, at: u32) -> Option<NamespaceIndex> {
        self.table.get(at as usize)?.as_ref().map(|session| session.ns)
    }

    pub(crate) fn find(&self, ns: NamespaceIndex, id: &SessionId) -> Option<u32> {
        let is =
            |at: &u32| self.table[*at as usize].as_ref().is_some_and(|this| this.ns == ns && this.id == *id);
        self.names.find(self.hasher.hash_one((ns, id)), is).copied()
    }

    /// Adds a session of a tenant that does not exist.
    pub(crate) fn insert(
        &mut self,
        ns: NamespaceIndex,
        tenant: u32,
        id: &SessionId,
        ttl_ms: u64,
        now: Now,
    ) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.table[at as usize] = Some(Session {
            ns,
            id: id.clone(),
            turn: 0,
            in_turn: false,
            priority: 0,
            ttl_ms,
            last_used: now,
            return_at: None,
            prefetch_at: None,
            prefetched: 0,
            warmed: WalkBack::default(),
            tip: None,
            may_continue: false,
            ends: [None; ENDS],
            tenant,
            standing: None,
            deadline_key: 0,
            prefetch_key: None,
            expected: false,
        });
        let Sessions { table, names, hasher, .. } = self;
        let code =
            |at: &u32| table[*at as usize].as_ref().map_or(0, |this| hasher.hash_one((this.ns, &this.id)));
        names.insert_unique(code(&at), at, code);
        self.name_bytes += id.as_str().len();
        *self.owned.entry(ns).or_default() += 1;
        self.update(at, |_| {});
        at
    }

    /// Changes a session and puts it in its place in every order.
    pub(crate) fn update(&mut self, at: u32, change: impl FnOnce(&mut Session)) {
        let tenant = self[at].tenant;
        let before = self[at].standing;
        self.unlist(at);
        let session = &mut self[at];
        change(session);
        let standing = session.stands();
        session.standing = Some(standing);
        session.deadline_key = session.last_used.saturating_add(session.ttl_ms);
        session.prefetch_key = session.prefetch_at;
        session.expected = session.return_at.is_some();
        let (deadline, prefetch) = (session.deadline_key, session.prefetch_key);
        match before {
            Some(before) => self.tenants.shift(tenant, before, standing, at),
            None => self.tenants.add(tenant, standing, at),
        }
        self.expected += u64::from(self[at].expected);
        self.deadlines.insert((deadline, at));
        self.prefetches.extend(prefetch.map(|begins| (begins, at)));
    }

    /// The session that makes way for a new one of a tenant where there are as many as there may be, and how
    /// many were looked at. A tenant that has no fewer than its equal share loses its own: the longest idle,
    /// else one in a turn that was silent for long (engines die). For one that has fewer, the tenant with
    /// most loses one: if it has too many, in a turn or not.
    pub(super) fn makes_way(&mut self, tenant: u32, sessions_max: u32, now: Now) -> (Option<u32>, u64) {
        let own = self.tenants.len_of(tenant);
        let tenants = self.tenants.len() + usize::from(own == 0);
        let share = (sessions_max as usize / tenants).max(1);
        let (has, gives_way) = self.tenants.fullest().filter(|_| own < share).unwrap_or((0, tenant));
        let (first, looked) = self.first_to_go(gives_way);
        let may_go = |at: &u32| {
            let session = &self[*at];
            has > share || !session.in_turn || session.last_used.saturating_add(SILENT_TURN_MS) <= now
        };
        (first.filter(may_go), looked)
    }

    /// The first in a tenant's order, and how many were looked at. Those that were used since they were put
    /// there move back, once each; where many were, the first of those looked at goes.
    fn first_to_go(&mut self, tenant: u32) -> (Option<u32>, u64) {
        let mut late: Option<(Standing, u32)> = None;
        for looked in 1..=LATE_SESSIONS_PER_PICK_MAX {
            let Some((standing, at)) = self.tenants.first_of(tenant) else { return (None, looked) };
            let stands = self[at].stands();
            if stands == standing {
                return (Some(at), looked);
            }
            self.update(at, |_| {});
            late = late.into_iter().chain([(stands, at)]).min();
        }
        (late.map(|(_, at)| at), LATE_SESSIONS_PER_PICK_MAX)
    }

    /// The session whose time to live ended first, as far as was known; false: it was used since, and is put
    /// back.
    pub(crate) fn overdue(&mut self, now: Now) -> Option<(u32, bool)> {
        let (deadline, at) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline < now)?;
        let is_over = self[at].last_used.saturating_add(self[at].ttl_ms) == deadline;
        if !is_over {
            self.update(at, |_| {});
        }
        Some((at, is_over))
    }

    /// The session whose prefetch has been due for longest.
    pub(crate) fn due_for_prefetch(&self, now: Now) -> Option<u32> {
        self.prefetches.first().filter(|(begins, _)| *begins <= now).map(|(_, at)| *at)
    }

    /// The session that ended with a page, if it may be continued by another.
    pub(super) fn ended_with(&self, ns: NamespaceIndex, page: &BlockHash) -> Option<u32> {
        self.ends.get(&(ns, *page)).copied()
    }

    /// A session ended with these pages; none: it may not be continued by another.
    pub(crate) fn note_end(&mut self, at: u32, pages: &[BlockHash]) {
        let mut last = pages.iter().rev().copied();
        let ends = std::array::from_fn(|_| last.next());
        let ns = self[at].ns;
        for page in std::mem::replace(&mut self[at].ends, ends).into_iter().flatten() {
            if self.ends.get(&(ns, page)) == Some(&at) {
                self.ends.remove(&(ns, page));
            }
        }
        self.ends.extend(ends.into_iter().flatten().map(|page| ((ns, page), at)));
    }

    /// Whether every end is one of a session that exists.
    pub(crate) fn ends_are_whose_they_say(&self) -> bool {
        self.ends.iter().all(|((ns, page), at)| {
            let session = self.table.get(*at as usize).and_then(Option::as_ref);
            session.is_some_and(|session| session.ns == *ns && session.ends.contains(&Some(*page)))
        })
    }

    /// Whether every session stands in its tenant's order, and nothing else does.
    pub(crate) fn tenants_add_up(&self) -> bool {
        let stands = |(at, session): (u32, &Session)| {
            session.standing.is_some_and(|standing| self.tenants.has(session.tenant, standing, at))
        };
        self.iter().all(stands) && self.tenants.adds_up(self.names.len())
    }

    /// Removes a session. `tell`: nobody asked for it, so the caller must hear of it.
    pub(crate) fn remove(&mut self, at: u32, tell: bool) {
        self.unlist(at);
        if let Some(standing) = self[at].standing {
            self.tenants.remove(self[at].tenant, standing, at);
        }
        self.note_end(at, &[]);
        let code = self.hasher.hash_one((self[at].ns, &self[at].id));
        if let Ok(name) = self.names.find_entry(code, |other| *other == at) {
            name.remove();
        }
        self.free.push(at);
        self.name_bytes -= self[at].id.as_str().len();
        let ns = self[at].ns;
        if let Some(owned) = self.owned.get_mut(&ns) {
            *owned -= 1;
            if *owned == 0 {
                self.owned.remove(&ns);
            }
        }
        if let Some(session) = self.table[at as usize].take().filter(|_| tell) {
            self.forgotten_count += 1;
            if self.forgotten.len() < FORGOTTEN_MAX {
                self.forgotten.push((session.ns, session.id));
            }
        }
    }

    /// Sessions forgotten without being asked to, ever.
    pub(crate) fn forgotten_count(&self) -> u64 {
        self.forgotten_count
    }

    pub(crate) fn take_forgotten(&mut self) -> Vec<(NamespaceIndex, SessionId)> {
        std::mem::take(&mut self.forgotten)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.table.iter().enumerate().filter_map(|(at, session)| Some((at as u32, session.as_ref()?)))
    }

    pub(crate) fn bytes(&self) -> usize {
        let ends = self.ends.capacity() * (size_of::<(NamespaceIndex, BlockHash)>() + size_of::<u32>());
        let orders = (self.names.len() + self.deadlines.len() + self.prefetches.len()) * ORDER_BYTES;
        let names = self.names.allocation_size() + self.name_bytes;
        self.table.capacity() * size_of::<Option<Session>>()
            + self.free.capacity() * 4
            + ends
            + orders
            + names
            + self.tenants.bytes()
    }

    /// Takes a session out of the orders but its tenant's.
    fn unlist(&mut self, at: u32) {
        let session = &self[at];
        let (deadline, prefetch, expected) = (session.deadline_key, session.prefetch_key, session.expected);
        self.deadlines.remove(&(deadline, at));
        if let Some(begins) = prefetch {
            self.prefetches.remove(&(begins, at));
        }
        self.expected -= u64::from(expected);
    }
}

impl Session {
    /// Where it would stand in its tenant's order now.
    fn stands(&self) -> Standing {
        match self.in_turn {
            true => Standing::InTurn(self.last_used),
            false => Standing::Idle(self.priority, self.last_used),
        }
    }
}

impl Index<u32> for Sessions {
    type Output = Session;

    fn index(&self, at: u32) -> &Session {
        self.table[at as usize]
            .as_ref()
            .unwrap_or_else(|| unreachable!("orders name only sessions that exist"))
    }
}

impl IndexMut<u32> for Sessions {
    fn index_mut(&mut self, at: u32) -> &mut Session {
        self.table[at as usize]
            .as_mut()
            .unwrap_or_else(|| unreachable!("orders name only sessions that exist"))
    }
}
