//! The router. Owns: what is known of engines (which pages they ran last, how large the sessions are that
//! live there) and the ranking of candidates. Must not know: where pages are in a pool, how engines are
//! reached.
//!
//! An engine's own cache is not seen from here. It is modelled: an engine holds a page if fewer pages than
//! its capacity came new to it since it last ran the page, which is what a least-recently-used cache of that
//! size would hold. Sampled: every eighth page of a prefix is marked, so that a turn of 9,000 pages costs
//! about a thousand marks and a question a bisection.

use crate::error::RouteError;
use crate::limits::{
    BALANCE_PERCENT, CANDIDATES_MAX, ENGINES_MAX, HALF_LIFE_MS, HOLDERS_MAX, MARK_EVERY, MARKS_MAX,
    NAME_BYTES_MAX, SESSIONS_MAX, SLACK_PROMPTS,
};
use hashbrown::HashMap;
use turnkv_proto::{BlockHash, SessionId};

/// A moment in milliseconds on the caller's monotonic clock.
pub type Now = u64;

/// A namespace, by a number that the caller gives it and never gives another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteNamespace(pub u64);

/// An engine that could run a turn, as it reports itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name: the one it begins turns with.
    pub name: &'a str,
    /// Pages its own cache holds; 0: unknown.
    pub capacity_pages: u64,
    /// Pages that its running sessions use now.
    pub used_pages: u64,
    /// Sessions running there now: room for their growth is kept free.
    pub running: u32,
    /// Requests waiting there.
    pub waiting: u32,
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct RouteAsk<'a> {
    /// The namespace.
    pub ns: RouteNamespace,
    /// Its session, where there is one.
    pub session: Option<&'a SessionId>,
    /// The pages of its prompt, as far as they are known.
    pub hashes: &'a [BlockHash],
    /// Where it could run.
    pub candidates: &'a [Candidate<'a>],
}

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineView {
    /// Leading pages it holds, as far as can be known from here.
    pub held_pages: u64,
    /// Pages of the sessions that live there, and of those that wait.
    pub load: f64,
    /// It ran the session's last turn.
    pub is_home: bool,
}

/// A candidate's rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Its position among the candidates.
    pub candidate: usize,
    /// Leading pages it holds, as far as can be known from here.
    pub held_pages: u64,
    /// It ran the session's last turn.
    pub is_home: bool,
    /// Pages that would not fit beside what runs there.
    pub overflow_pages: u64,
    /// What it is worth: pages held, less what does not fit, less its load beyond the least loaded one's.
    pub score: f64,
}

/// What is known of engines. Every table is bounded; what is forgotten costs a reload, never a wrong answer.
#[derive(Default)]
pub struct Router {
    ids: HashMap<String, u32>,
    engines: HashMap<u32, Engine>,
    next_id: u32,
    marks: Recent<u64, Holders>,
    homes: Recent<(RouteNamespace, SessionId), Home>,
    /// New pages a turn, a running mean.
    growth: f64,
}

struct Engine {
    name: String,
    /// Pages that came new to it, ever.
    clock: u64,
    capacity_pages: u64,
    /// Pages of the sessions that live there, each once, those not heard of for long counting less.
    resident: f64,
    /// When `resident` was true.
    decayed: Now,
    /// When it was named last.
    seen: Now,
}

/// Where a session lives.
#[derive(Clone, Copy)]
struct Home {
    engine: u32,
    pages: u64,
    since: Now,
}

/// Engines that ran a page, the last one first, each with its clock at that time.
#[derive(Clone, Copy, Default)]
struct Holders([Option<(u32, u64)>; HOLDERS_MAX]);

/// A map that forgets what was not used for long: when the young half is full it becomes the old one.
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl Router {
    /// A session's turn ran (or begins to run) at an engine, on these pages.
    pub fn ran(&mut self, ask: RouteAsk<'_>, engine: &str, now: Now) -> Result<(), RouteError> {
        let id = self.engine_id(engine, now)?;
        let (ns, hashes) = (ask.ns, ask.hashes);
        let held = self.held(ns, id, hashes);
        let new = hashes.len() as u64 - held;
        self.growth += (new as f64 - self.growth) / 16.0;
        if let Some(session) = ask.session {
            let key = (ns, session.clone());
            self.leave(&key, now);
            let home = Home { engine: id, pages: hashes.len() as u64, since: now };
            self.homes.put(key, home, SESSIONS_MAX);
        }
        let Some(engine) = self.engines.get_mut(&id) else { return Ok(()) };
        engine.clock += new;
        engine.decay(now);
        engine.resident += hashes.len() as f64;
        let clock = engine.clock;
        for position in marked(hashes.len()) {
            let key = mark(ns, &hashes[position]);
            let mut holders = self.marks.get(&key).copied().unwrap_or_default();
            holders.put(id, clock);
            self.marks.put(key, holders, MARKS_MAX);
        }
        Ok(())
    }

    /// Refuses a name that no engine can have.
    pub fn check_name(name: &str) -> Result<(), RouteError> {
        match name.len() {
            1..=NAME_BYTES_MAX => Ok(()),
            _ => Err(RouteError::EngineName),
        }
    }

    /// The session is over: nothing calls it home any more.
    pub fn forget(&mut self, ns: RouteNamespace, session: &SessionId, now: Now) {
        self.leave(&(ns, session.clone()), now);
    }

    /// Takes a session from its engine, with what is left of its weight there.
    fn leave(&mut self, session: &(RouteNamespace, SessionId), now: Now) {
        let Some(home) = self.homes.remove(session) else { return };
        if let Some(engine) = self.engines.get_mut(&home.engine) {
            engine.decay(now);
            engine.resident = (engine.resident - home.pages as f64 * decay(home.since, now)).max(0.0);
        }
    }

    /// Ranks the candidates by what is known of them here.
    pub fn route(&mut self, ask: RouteAsk<'_>, now: Now) -> Result<Vec<Ranked>, RouteError> {
        let views = self.look(ask, now)?;
        Ok(self.rank(ask.candidates, ask.hashes.len() as u64, &views))
    }

    /// What is known of each candidate, in their order.
    pub fn look(&mut self, ask: RouteAsk<'_>, now: Now) -> Result<Vec<EngineView>, RouteError> {
        if ask.candidates.is_empty() || ask.candidates.len() > CANDIDATES_MAX {
            return Err(RouteError::Candidates);
        }
        ask.candidates.iter().try_for_each(|candidate| Router::check_name(candidate.name))?;
        let home = ask.session.and_then(|session| self.homes.get(&(ask.ns, session.clone())).copied());
        let mut views = Vec::with_capacity(ask.candidates.len());
        for candidate in ask.candidates {
            let id = self.engine_id(candidate.name, now)?;
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.decay(now);
                if candidate.capacity_pages > 0 {
                    engine.capacity_pages = candidate.capacity_pages;
                }
            }
            // Without this session, which must not be its own reason to leave.
            let own = home.filter(|home| home.engine == id);
            let own = own.map_or(0.0, |home| home.pages as f64 * decay(home.since, now));
            let resident = self.engines.get(&id).map_or(0.0, |engine| engine.resident) - own;
            let load = resident.max(0.0) + f64::from(candidate.waiting) * self.growth;
            let is_home = home.is_some_and(|home| home.engine == id);
            views.push(EngineView { held_pages: self.held(ask.ns, id, ask.hashes), load, is_home });
        }
        Ok(views)
    }

    /// Ranks candidates for a prompt of so many pages by what is known of each, the best first. Ties go to the session's home, then to
    /// the one with less load, then to the one named first.
    pub fn rank(&self, candidates: &[Candidate<'_>], pages: u64, views: &[EngineView]) -> Vec<Ranked> {
        let least = views.iter().map(|view| view.load).fold(f64::INFINITY, f64::min);
        let mean = views.iter().map(|view| view.load).sum::<f64>() / views.len() as f64;
        let mut ranked: Vec<Ranked> = Vec::with_capacity(views.len());
        for (at, (view, candidate)) in views.iter().zip(candidates).enumerate() {
            let reserved = (f64::from(candidate.running) * self.growth) as u64;
            let wanted = candidate.used_pages.saturating_add(reserved).saturating_add(pages);
            let fits = if candidate.capacity_pages == 0 { u64::MAX } else { candidate.capacity_pages };
            let overflow_pages = wanted.saturating_sub(fits).min(pages);
            // A few prompts more are no imbalance: that is what one turn does.
            let excess = (view.load - least) / (mean + (SLACK_PROMPTS * pages.max(1)) as f64);
            let balance = excess * pages.max(1) as f64 * BALANCE_PERCENT / 100.0;
            let EngineView { held_pages, is_home, .. } = *view;
            let score = held_pages as f64 - 2.0 * overflow_pages as f64 - balance;
            ranked.push(Ranked { candidate: at, held_pages, is_home, overflow_pages, score });
        }
        let load = |ranked: &Ranked| views[ranked.candidate].load;
        ranked.sort_by(|one, two| {
            let home = two.is_home.cmp(&one.is_home);
            two.score.total_cmp(&one.score).then(home).then(load(one).total_cmp(&load(two)))
        });
        ranked
    }

    /// The engine that ran a session's last turn, if that is still known.
    pub fn home(&self, ns: RouteNamespace, session: &SessionId) -> Option<&str> {
        let home = self.homes.get(&(ns, session.clone()))?;
        self.engines.get(&home.engine).map(|engine| engine.name.as_str())
    }

    /// Engines known.
    pub fn engines(&self) -> usize {
        self.engines.len()
    }

    /// Sessions whose last engine is known.
    pub fn sessions(&self) -> usize {
        self.homes.len()
    }

    /// Pages marked.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    /// The engine of a name; a new one takes the place of the one not seen for longest when the table is
    /// full.
    fn engine_id(&mut self, name: &str, now: Now) -> Result<u32, RouteError> {
        Router::check_name(name)?;
        if let Some(id) = self.ids.get(name).copied() {
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.seen = now;
            }
            return Ok(id);
        }
        if self.engines.len() >= ENGINES_MAX {
            let oldest =
                self.engines.iter().min_by_key(|(id, engine)| (engine.seen, **id)).map(|(id, _)| *id);
            if let Some(gone) = oldest.and_then(|id| self.engines.remove(&id)) {
                self.ids.remove(&gone.name);
            }
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let name = name.to_owned();
        self.ids.insert(name.clone(), id);
        self.engines.insert(
            id,
            Engine { name, clock: 0, capacity_pages: u64::MAX, resident: 0.0, decayed: now, seen: now },
        );
        Ok(id)
    }

    /// Leading pages that an engine holds by the model. Presence is taken to be monotone, as in any prefix
    /// cache.
    fn held(&self, ns: RouteNamespace, id: u32, hashes: &[BlockHash]) -> u64 {
        let Some(engine) = self.engines.get(&id) else { return 0 };
        let holds = |position: usize| {
            let clock = self.marks.get(&mark(ns, &hashes[position])).and_then(|holders| holders.clock_of(id));
            clock.is_some_and(|clock| engine.clock - clock < engine.capacity_pages)
        };
        let positions: Vec<usize> = marked(hashes.len()).collect();
        let count = positions.partition_point(|position| holds(*position));
        count.checked_sub(1).map_or(0, |last| positions[last] as u64 + 1)
    }
}

impl Engine {
    /// Sessions count half after every half-life in which nothing was heard of them.
    fn decay(&mut self, now: Now) {
        self.resident *= decay(self.decayed, now);
        self.decayed = now.max(self.decayed);
    }
}

impl Holders {
    fn clock_of(&self, id: u32) -> Option<u64> {
        self.0.iter().flatten().find(|(holder, _)| *holder == id).map(|(_, clock)| *clock)
    }

    /// Puts an engine first; the one that ran the page longest ago is forgotten.
    fn put(&mut self, id: u32, clock: u64) {
        let at = self.0.iter().position(|holder| holder.is_some_and(|(holder, _)| holder == id));
        self.0[..=at.unwrap_or(HOLDERS_MAX - 1)].rotate_right(1);
        self.0[0] = Some((id, clock));
    }
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: std::hash::Hash + Eq, V> Recent<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn put(&mut self, key: K, value: V, max: usize) {
        if self.young.len() >= max / 2 && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let (young, old) = (self.young.remove(key), self.old.remove(key));
        young.or(old)
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// What is left of something from then.
fn decay(then: Now, now: Now) -> f64 {
    0.5f64.powf(now.saturating_sub(then) as f64 / HALF_LIFE_MS as f64)
}

/// Positions of a prefix that are marked: the first page, every eighth, and the last.
fn marked(pages: usize) -> impl Iterator<Item = usize> {
    let last = pages.checked_sub(1);
    let inner = (MARK_EVERY - 1..pages).step_by(MARK_EVERY).filter(move |at| Some(*at) != last);
    (pages > 1).then_some(0).into_iter().chain(inner).chain(last)
}

/// A page, as the table of marks knows it. Two pages that agree here cost a worse route, nothing else.
fn mark(ns: RouteNamespace, hash: &BlockHash) -> u64 {
    let (words, _) = hash.0.as_chunks::<8>();
    u64::from_le_bytes(words[0]) ^ u64::from_le_bytes(words[3]).rotate_left(32) ^ ns.0
}

#[cfg(test)]
mod tests;
