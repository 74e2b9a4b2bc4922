//! What is promised. Owns: the bounds at every step, and what must be right when nothing fails any more. Must not know: how
//! members decide.

use crate::etcd::EtcdFault;
use crate::world::{ROUND_MS, World};
use turnkv_cluster::limits::{BACK_AFTER_ROUNDS, CALLS_MAX, GENERATION_ROUNDS, SHRUNK_ROUNDS, SWEEP_ROUNDS};
use turnkv_cluster::{Tip, authorities};

/// Rounds after the last fault in which everything is right again: a view is believed, a member that was away is back, what is
/// there was swept, and what is not there any more has left two generations.
pub(crate) const RIGHT_AFTER_ROUNDS: u64 =
    4 + SHRUNK_ROUNDS as u64 + BACK_AFTER_ROUNDS as u64 + SWEEP_ROUNDS + 2 * GENERATION_ROUNDS;

impl World {
    /// Tables stay within what they may hold.
    pub(crate) fn check_bounds(&self) {
        for member in self.hosts.iter().filter_map(|host| host.member.as_ref()) {
            assert!(member.calls() <= CALLS_MAX && member.homes() <= self.sessions.len());
            assert!(member.directory().tips() <= 2 * self.sessions.len());
        }
    }

    /// Nothing fails any more: hosts start, links carry, everybody answers.
    pub(crate) fn heal(&mut self) {
        self.etcd.fault = EtcdFault::None;
        self.cuts.clear();
        self.archive_down = false;
        self.old_words.clear();
        (self.plan.lost, self.plan.doubled, self.plan.damaged, self.plan.delay_ms_max) = (0, 0, 0, 3);
        for host in 0..self.hosts.len() {
            if self.hosts[host].member.is_none() {
                self.start(host);
            }
        }
    }

    /// Some rounds later: all see the same, and the first authority of a session names the best of those that have it.
    pub(crate) fn check_right(&self) {
        let views: Vec<_> =
            self.hosts.iter().map(|host| host.member.as_ref().expect("it lives").view()).collect();
        for view in &views {
            assert_eq!(view.members().len(), self.hosts.len(), "{:?}", view.members());
            assert_eq!(view.epoch(), views[0].epoch());
        }
        for (at, session) in self.sessions.iter().enumerate() {
            for host in self.hosts.iter().filter(|host| host.pool.get(at).is_none()) {
                let claims = host.member.as_ref().and_then(|member| member.home_tip(&session.key));
                assert_eq!(claims, None, "session {at} is not there");
            }
            let best = self.best_home(at);
            let first = authorities(views[0], 42, &session.key.0)[0].expect("somebody serves");
            let first =
                self.host_of(first).and_then(|host| self.hosts[host].member.as_ref()).expect("it lives");
            let named = first.directory().tip(&session.key, views[0]);
            assert_eq!(named, best, "session {at}: what its authority says, and where it is");
        }
    }

    /// A turn that only looked has found what anybody has.
    pub(crate) fn check_found(&self, session: usize, pages: usize) {
        let at_home = self.best_home(session).map_or(0, |tip| tip.pages as usize);
        let archived = self.sessions[session].archived.len();
        // A home whose session was computed again elsewhere meanwhile has other pages than those asked for.
        let usable = |hashes: &[turnkv_proto::BlockHash]| {
            hashes.iter().zip(&self.sessions[session].hashes).take_while(|(one, two)| one == two).count()
        };
        let archive: Vec<_> = self.sessions[session].archived.iter().map(|page| page.0).collect();
        assert!(pages >= usable(&archive), "{pages} of {archived} archived pages of session {session}");
        let home = self.best_home(session).and_then(|tip| self.host_of(tip.home.member));
        let home = home.and_then(|host| self.hosts[host].pool.get(session));
        let home: Vec<_> = home.map_or_else(Vec::new, |(_, pages)| pages.iter().map(|page| page.0).collect());
        assert!(pages >= usable(&home), "{pages} of {at_home} pages at home of session {session}");
    }

    /// Of the living members that are home of a session, the one to be believed.
    fn best_home(&self, session: usize) -> Option<Tip> {
        let key = self.sessions[session].key;
        let members = self.hosts.iter().filter_map(|host| host.member.as_ref());
        let later = |one: Tip, two: Tip| if two.beats(&one) { two } else { one };
        members.filter_map(|member| member.home_tip(&key)).reduce(later)
    }

    pub(crate) fn rounds(&mut self, rounds: u64) {
        self.run_until(self.now + rounds * ROUND_MS);
    }
}
