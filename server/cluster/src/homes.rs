//! The sessions that a member is home of, and which of them it publishes next. Owns: the list, and how far the sweep over it
//! is. Must not know: where they are published.

use crate::ids::{PrefixKey, SessionKey};
use crate::limits::{HOMES_CHECKED_MIN, HOMES_MAX, HURRY_ROUNDS, SWEEP_ROUNDS};
use hashbrown::HashMap;

/// Sessions at home here. All of them are published over and over, so that whatever an authority missed or lost is told again.
#[derive(Default)]
pub(crate) struct Homes {
    sessions: HashMap<SessionKey, Home>,
    order: Vec<SessionKey>,
    cursor: usize,
    /// How far the check is whether the pool still has them.
    checked: usize,
    /// Which one makes way next where there is no room.
    leaving: usize,
    hurried: usize,
}

/// A session at home here.
pub(crate) struct Home {
    pub(crate) turn: u32,
    pub(crate) moves: u32,
    pub(crate) pages: u32,
    /// Every so many pages of its chain, the page's key.
    pub(crate) posts: Vec<PrefixKey>,
    place: usize,
}

impl Homes {
    pub(crate) fn get(&self, session: &SessionKey) -> Option<&Home> {
        self.sessions.get(session)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// A turn ended here. Where there is no room for one session more another makes way, each in its turn: returns it,
    /// and the turn that it had.
    pub(crate) fn put(
        &mut self,
        session: SessionKey,
        (turn, moves): (u32, u32),
        pages: u32,
        posts: Vec<PrefixKey>,
    ) -> Option<(SessionKey, u32)> {
        let mut gone = None;
        let place = match self.sessions.get(&session) {
            Some(home) => home.place,
            None if self.order.len() >= HOMES_MAX => {
                let place = self.leaving % self.order.len();
                self.leaving = place + 1;
                let other = std::mem::replace(&mut self.order[place], session);
                gone = self.sessions.remove(&other).map(|home| (other, home.turn));
                place
            }
            None => {
                self.order.push(session);
                self.order.len() - 1
            }
        };
        self.sessions.insert(session, Home { turn, moves, pages, posts, place });
        gone
    }

    /// A session is not at home here any more.
    pub(crate) fn remove(&mut self, session: &SessionKey) -> Option<Home> {
        let home = self.sessions.remove(session)?;
        let mut hole = home.place;
        if hole < self.cursor {
            // The sweep has passed it: the last one that it passed takes its place, so that it passes none unpublished.
            self.cursor -= 1;
            self.order.swap(hole, self.cursor);
            self.note_place(hole);
            hole = self.cursor;
        }
        self.order.swap_remove(hole);
        self.note_place(hole);
        Some(home)
    }

    fn note_place(&mut self, place: usize) {
        if let Some(moved) = self.order.get(place).and_then(|moved| self.sessions.get_mut(moved)) {
            moved.place = place;
        }
    }

    /// All of them are published once more, soon.
    pub(crate) fn hurry(&mut self) {
        self.hurried = self.order.len();
    }

    /// What a round publishes: a part of all, so that a sweep takes so many rounds however many there are.
    pub(crate) fn next(&mut self) -> Vec<SessionKey> {
        let rounds = if self.hurried > 0 { HURRY_ROUNDS } else { SWEEP_ROUNDS };
        let count = self.order.len().div_ceil(rounds as usize);
        self.hurried = self.hurried.saturating_sub(count);
        let mut next = Vec::with_capacity(count);
        for _ in 0..count {
            if self.cursor >= self.order.len() {
                self.cursor = 0;
            }
            next.push(self.order[self.cursor]);
            self.cursor += 1;
        }
        next
    }

    /// Which of them are looked for in the pool next, each with its turn: a small member's all within some rounds, another's as
    /// fast as they are published.
    pub(crate) fn next_to_check(&mut self) -> Vec<(SessionKey, u32)> {
        let sessions = self.order.len();
        let count = sessions.div_ceil(SWEEP_ROUNDS as usize).max(HOMES_CHECKED_MIN).min(sessions);
        let from = if self.checked < sessions { self.checked } else { 0 };
        self.checked = from + count;
        let next = (from..from + count).map(|place| self.order[place % sessions]);
        next.filter_map(|session| Some((session, self.sessions.get(&session)?.turn))).collect()
    }
}
