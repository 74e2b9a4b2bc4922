//! Lookups and turns in clusters of 3 and of 200, message by message: that they find the longest prefix, in how many rounds and
//! questions. Must not know: how a search goes on.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

use turnkv_cluster::limits::{APART_ROUNDS, ASK_MS, FIND_MS, LOOKUP_MS, POST_EVERY};
use turnkv_cluster::{
    CallId, ClusterConfig, ClusterMember, Decision, Effects, Held, Incarnation, Kept, Life, Member, MemberId,
    MemberState, Observation, PrefixAsk, PullError, SessionKey, Whose, authorities,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

const NAMESPACE: NamespaceId = NamespaceId([3; 32]);

/// Members whose messages all take one round.
struct Cluster {
    members: Vec<ClusterMember>,
    held: Vec<Vec<BlockHash>>,
    silent: Vec<usize>,
    rounds: u32,
    questions: u32,
}

impl Cluster {
    fn of(count: usize) -> Cluster {
        let life = |at: usize| Life { member: MemberId(at as u64), incarnation: Incarnation(1) };
        let config = |at| ClusterConfig { own: life(at), weight: 1, seed: 5 };
        let member = |at| Member {
            id: life(at).member,
            incarnation: life(at).incarnation,
            weight: 1,
            state: MemberState::Serving,
        };
        let view: Vec<Member> = (0..count).map(member).collect();
        let mut cluster = Cluster {
            members: (0..count).map(|at| ClusterMember::new(config(at))).collect(),
            held: vec![Vec::new(); count],
            silent: Vec::new(),
            rounds: 0,
            questions: 0,
        };
        for at in 0..count {
            let effects = cluster.members[at].round(Observation::Members(view.clone()), true, 0);
            cluster.settle(at, effects);
        }
        cluster
    }

    fn keep(&mut self, at: usize, session: &str, turn: u32, hashes: &[BlockHash]) {
        self.held[at] = hashes.to_vec();
        let kept = Kept { session: session_key(session), turn, namespace: NAMESPACE, hashes };
        let effects = self.members[at].turn_ended(kept, None, 0);
        self.settle(at, effects);
    }

    /// Carries out what follows, all messages of a round at once. Returns what was decided.
    fn settle(&mut self, at: usize, effects: Effects) -> Vec<(CallId, Decision)> {
        let mut open = vec![(at, effects)];
        let mut decided = Vec::new();
        (self.rounds, self.questions) = (0, 0);
        while !open.is_empty() {
            let mut next = Vec::new();
            for (at, effects) in open {
                decided.extend(effects.decided);
                for envelope in effects.send {
                    let to = envelope.to.0 as usize;
                    if !self.silent.contains(&to) {
                        self.questions += 1;
                        next.push((to, self.members[to].receive(envelope, 0)));
                    }
                }
                for probe in effects.probes {
                    let to = probe.member.0 as usize;
                    if !self.silent.contains(&to) {
                        self.questions += 1;
                        let present =
                            probe.hashes.iter().take_while(|hash| self.held[to].contains(hash)).count();
                        next.push((at, self.members[at].counted(probe.call, probe.member, Some(present), 0)));
                    }
                }
            }
            self.rounds += u32::from(!next.is_empty());
            open = next;
        }
        decided
    }

    fn look(&mut self, at: usize, hashes: &[BlockHash], hint: Option<MemberId>) -> Decision {
        self.look_beyond(at, hashes, 0, hint)
    }

    /// The same, where so many leading pages are here.
    fn look_beyond(
        &mut self,
        at: usize,
        hashes: &[BlockHash],
        local: usize,
        hint: Option<MemberId>,
    ) -> Decision {
        let ask = PrefixAsk { namespace: NAMESPACE, hashes: hashes.to_vec(), only_posts: false, local, hint };
        let (call, effects) = self.members[at].lookup(ask, 0);
        let decided = self.settle(at, effects);
        decided.into_iter().find(|(of, _)| *of == call).expect("it is decided").1
    }
}

fn session_key(name: &str) -> SessionKey {
    SessionKey::of(&NAMESPACE, &SessionId::parse(name).expect("a session id"))
}

fn chain(seed: u32, pages: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::with_capacity(pages);
    for at in 0..pages as u32 {
        hashes.push(BlockHash::chain(hashes.last(), &[if at < 10 { 0 } else { seed }, at]));
    }
    hashes
}

#[test]
fn three_members_are_asked_at_once() {
    let mut cluster = Cluster::of(3);
    let (long, other) = (chain(1, 8900), chain(2, 8900));
    cluster.keep(1, "one", 1, &long[..8143]);
    cluster.keep(2, "two", 1, &other);
    assert_eq!(cluster.look(0, &long, None), Decision::Holds(Held { member: MemberId(1), pages: 8143 }));
    assert!(cluster.rounds <= 2 && cluster.questions <= 4, "{} rounds", cluster.rounds);
    assert_eq!(
        cluster.look(0, &chain(3, 500), None),
        Decision::Holds(Held { member: MemberId(1), pages: 10 })
    );
    // What nobody has is settled in one round: 0 of the first page.
    assert_eq!(cluster.look(0, &chain(3, 500)[20..], None), Decision::Nowhere);
    assert!(cluster.rounds <= 2);
}

#[test]
fn two_hundred_members_have_signposts() {
    let mut cluster = Cluster::of(200);
    let long = chain(1, 142_000 / 16);
    for (session, pages) in [(3usize, long.len()), (77, 5000), (150, 130)] {
        let hashes = chain(session as u32, pages);
        cluster.keep(session, &format!("s{session}"), 1, &hashes);
        for wanted in [pages, pages - pages / 3] {
            let decision = cluster.look(0, &hashes[..wanted], None);
            let (rounds, questions) = (cluster.rounds, cluster.questions);
            assert_eq!(decision, Decision::Holds(Held { member: MemberId(session as u64), pages: wanted }));
            // A question to an authority and its answer count as a round each here.
            assert!(
                rounds <= 7 && questions <= 80,
                "{rounds} rounds, {questions} messages for {wanted} pages"
            );
        }
    }
    // Whoever has a long prompt names its signposts alone, and every second one of a very long one.
    for (every, wanted) in [(POST_EVERY, 138), (2 * POST_EVERY, 69)] {
        let posts: Vec<BlockHash> = chain(3, long.len()).into_iter().skip(every - 1).step_by(every).collect();
        let (call, effects) = cluster.members[0].lookup(
            PrefixAsk { namespace: NAMESPACE, hashes: posts, only_posts: true, local: 0, hint: None },
            0,
        );
        let decided = cluster.settle(0, effects);
        let held = Held { member: MemberId(3), pages: wanted };
        assert_eq!(decided, [(call, Decision::Holds(held))], "every {every}");
        assert!(cluster.rounds <= 7 && cluster.questions <= 80, "{} rounds", cluster.rounds);
    }
    // Fewer pages than lie between two signposts are not worth two hundred questions.
    assert_eq!(cluster.look(0, &chain(3, POST_EVERY - 1), None), Decision::Nowhere);
}

#[test]
fn a_lost_signpost_hides_nothing() {
    let mut cluster = Cluster::of(40);
    let hashes = chain(9, 3000);
    cluster.keep(7, "s", 1, &hashes);
    // Some authorities are silent: what they know cannot be asked for.
    cluster.silent = vec![1, 2, 3, 4, 5, 6];
    let ask =
        PrefixAsk { namespace: NAMESPACE, hashes: hashes.clone(), only_posts: false, local: 0, hint: None };
    let (call, effects) = cluster.members[0].lookup(ask, 0);
    let mut decided = cluster.settle(0, effects);
    let mut now = 0;
    while decided.is_empty() && now <= LOOKUP_MS {
        now += ASK_MS;
        let effects = cluster.members[0].tick(now);
        decided = cluster.settle(0, effects);
    }
    let [(of, Decision::Holds(held))] = decided[..] else { panic!("{decided:?}") };
    assert!(of == call && held.member == MemberId(7) && held.pages > 2000, "{held:?}");
}

#[test]
fn whoever_is_away_or_drains_is_read_from_and_nothing_is_placed_there() {
    for state in [MemberState::Away, MemberState::Draining] {
        for count in [3, 40] {
            let mut cluster = Cluster::of(count);
            let hashes = chain(1, 900);
            cluster.keep(1, "one", 1, &hashes);
            let view: Vec<Member> = cluster.members[0].view().members().to_vec();
            let changed = |member: &Member| match member.id {
                MemberId(1) => Member { state, ..*member },
                _ => *member,
            };
            let view: Vec<Member> = view.iter().map(changed).collect();
            for at in 0..count {
                let effects = cluster.members[at].round(Observation::Members(view.clone()), true, 0);
                cluster.settle(at, effects);
            }
            // What it is home of is told to those that are authorities since.
            let effects = cluster.members[1].round(Observation::Members(view.clone()), true, 0);
            cluster.settle(1, effects);
            let held = Decision::Holds(Held { member: MemberId(1), pages: 900 });
            assert_eq!(cluster.look(0, &hashes, None), held, "{state:?} of {count}");
            assert_eq!(cluster.look(0, &hashes, Some(MemberId(1))), held, "{state:?} of {count}");
            let (call, effects) = cluster.members[0].turn_began(session_key("one"), 1, 0);
            let decided = cluster.settle(0, effects);
            let [(of, Decision::Pull(tip))] = decided[..] else {
                panic!("{state:?} of {count}: {decided:?}")
            };
            assert!(of == call && tip.home.member == MemberId(1), "{state:?} of {count}: {tip:?}");
            for key in 0..200u8 {
                let placed = authorities(cluster.members[0].view(), 5, &[key; 16]);
                assert!(!placed.contains(&Some(MemberId(1))), "{state:?}: {placed:?}");
            }
        }
    }
}

#[test]
fn a_hint_that_is_good_is_all_that_is_asked() {
    for count in [3, 200] {
        let mut cluster = Cluster::of(count);
        let hashes = chain(1, 900);
        cluster.keep(2, "one", 1, &hashes);
        let found = Decision::Holds(Held { member: MemberId(2), pages: 900 });
        assert_eq!(cluster.look(0, &hashes, Some(MemberId(2))), found);
        assert!(cluster.questions <= 2);
        assert_eq!(cluster.look(0, &hashes, Some(MemberId(1))), found, "a bad hint costs a round");
    }
}

#[test]
fn who_has_most_of_a_prompt_asks_for_the_rest() {
    for count in [3, 200] {
        let mut cluster = Cluster::of(count);
        let hashes = chain(1, 900);
        cluster.keep(2, "one", 1, &hashes[..860]);
        let held = Held { member: MemberId(2), pages: 860 };
        assert_eq!(cluster.look_beyond(0, &hashes, 700, None), Decision::Holds(held), "of {count}");
    }
}

#[test]
fn a_turn_asks_one_authority_and_waits_for_what_it_was_told_of() {
    let mut cluster = Cluster::of(3);
    let hashes = chain(1, 30);
    cluster.keep(1, "s", 3, &hashes);
    let key = session_key("s");
    let (call, effects) = cluster.members[0].turn_began(key, 3, 0);
    let tip = cluster.members[1].home_tip(&key).expect("it is at home there");
    assert_eq!(cluster.settle(0, effects), [(call, Decision::Pull(tip))]);
    assert!(cluster.questions <= 2 && cluster.members[1].whose(&key) == Whose::Here);
    // Turn 4 has ended, and is not published yet.
    let (call, effects) = cluster.members[0].turn_began(key, 4, 0);
    assert_eq!(cluster.settle(0, effects), []);
    cluster.keep(2, "s", 4, &hashes);
    let due = cluster.members[0].next_due().expect("it waits");
    let effects = cluster.members[0].tick(due);
    let later = cluster.members[2].home_tip(&key).expect("it is at home there");
    assert_eq!(cluster.settle(0, effects), [(call, Decision::Pull(later))]);
    // The earlier home publishes again, is told, and sends whoever comes on.
    let effects = cluster.members[1].round(Observation::Unreachable, true, 0);
    cluster.settle(1, effects);
    assert_eq!(cluster.members[1].whose(&key), Whose::Elsewhere(later));
    let (decision, _) = cluster.members[0].pull_failed(key, tip, PullError::NotHome(Some(later)), 0, 0);
    assert_eq!(decision, Decision::Pull(later));
    // A turn that never comes costs the whole wait, and no more.
    let (call, effects) = cluster.members[0].turn_began(key, 9, 0);
    assert_eq!(cluster.settle(0, effects), []);
    let effects = cluster.members[0].tick(FIND_MS);
    assert_eq!(effects.decided, [(call, Decision::Pull(later))]);
    assert_eq!(cluster.members[0].calls(), 0);
}

#[test]
fn a_home_that_was_apart_asks_whether_its_sessions_went_on_elsewhere() {
    let mut cluster = Cluster::of(4);
    let (hashes, names) = (chain(1, 30), (0..12).map(|at| format!("s{at}")).collect::<Vec<_>>());
    for name in &names {
        cluster.keep(0, name, 2, &hashes);
    }
    let view = Observation::Members(cluster.members[0].view().members().to_vec());
    let decide = |cluster: &mut Cluster, name: &str, told| {
        let (call, effects) = cluster.members[0].turn_began(session_key(name), told, 0);
        let mut decided = cluster.settle(0, effects);
        for tick in 1.. {
            if let Some((_, decision)) = decided.iter().find(|(of, _)| *of == call) {
                return (*decision, cluster.questions, tick);
            }
            let effects = cluster.members[0].tick(tick * ASK_MS);
            decided = cluster.settle(0, effects);
        }
        unreachable!("a search ends");
    };
    // Nobody hears it and it hears nobody; each session has three more turns elsewhere, but for the first one.
    cluster.silent = vec![0];
    for name in &names[1..] {
        cluster.keep(1, name, 5, &hashes[..10]);
    }
    cluster.silent = vec![1, 2, 3];
    for _ in 0..5 {
        let effects = cluster.members[0].round(view.clone(), false, 0);
        cluster.settle(0, effects);
        assert_eq!(decide(&mut cluster, "s3", 0), (Decision::Here, 0, 1), "nobody could say otherwise");
    }
    cluster.silent.clear();
    let effects = cluster.members[0].round(view.clone(), true, 0);
    // What it publishes now is lost, so that nobody tells it by themselves.
    drop(effects);
    let elsewhere =
        |cluster: &Cluster, name: &str| cluster.members[1].home_tip(&session_key(name)).map(Decision::Pull);
    for name in &names[1..] {
        for told in [0, 1, 2, 4] {
            let (decision, questions, _) = decide(&mut cluster, name, told);
            assert_eq!(Some(decision), elsewhere(&cluster, name), "{name}, told of {told}");
            assert!(questions <= 4, "{questions}");
        }
    }
    assert_eq!(decide(&mut cluster, "s0", 2).0, Decision::Here, "it went on nowhere");
    // Who does not answer costs its time, and no more.
    cluster.silent = vec![1, 2, 3];
    let (decision, _, ticks) = decide(&mut cluster, "s0", 0);
    assert!(decision == Decision::Here && ticks <= 3, "{decision:?} after {ticks} questions' time");
    cluster.silent.clear();
    for _ in 0..APART_ROUNDS {
        drop(cluster.members[0].round(view.clone(), true, 0));
    }
    assert_eq!(decide(&mut cluster, "s0", 0), (Decision::Here, 0, 1), "all has been told again by now");
}
