//! One member's part in a cluster, with messages of another that come in any order, twice, late, and from lives that are over.

use super::*;
use crate::cluster::runtime::{HoldsPages, Where};
use crate::config;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use turnkv_cluster::limits::TWICE_MS;
use turnkv_cluster::{Message, SessionKey, Tip, Whose};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

const NAMESPACE: NamespaceId = NamespaceId([1; 32]);
const NAME: &str = "t";

/// A pool that says what a test has it say.
#[derive(Default)]
struct Played {
    leaves: AtomicBool,
    lacks_all: AtomicBool,
    went: Mutex<Vec<SessionId>>,
}

impl HoldsPages for Played {
    fn goes_first(&self, namespace: &NamespaceId, session: &SessionId) {
        assert_eq!(*namespace, NAMESPACE);
        self.went.lock().push(session.clone());
    }

    fn is_leaving(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    fn lacks(&self, sessions: &[(NamespaceId, SessionId)]) -> Vec<usize> {
        if self.lacks_all.load(Ordering::Relaxed) { (0..sessions.len()).collect() } else { Vec::new() }
    }
}

/// The member `a` of a list of two, whose other one, `b`, is a socket that says nothing: what it says is what a test says.
struct Rig {
    cluster: Arc<Cluster>,
    pool: Arc<Played>,
    endpoint: String,
    _silent: std::net::TcpListener,
}

impl Rig {
    /// Its first life has begun.
    fn new() -> Rig {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", silent.local_addr().unwrap());
        let members = format!(
            "[{{ id = \"a\", endpoint = \"tcp://a:1\" }}, {{ id = \"b\", endpoint = \"{endpoint}\" }}]"
        );
        let text =
            format!("tcp = \"127.0.0.1:1\"\n[cluster]\nname = \"{NAME}\"\nid = \"a\"\nmembers = {members}\n");
        let settings = config::parse(Path::new("t"), &text).unwrap();
        let cluster = Cluster::new(&settings.cluster.unwrap()).unwrap();
        let pool = Arc::new(Played::default());
        let holds: Arc<dyn HoldsPages> = Arc::clone(&pool) as Arc<dyn HoldsPages>;
        cluster.is_of(Arc::downgrade(&holds));
        assert!(cluster.begin_life(true));
        cluster.round();
        Rig { cluster, pool, endpoint, _silent: silent }
    }

    /// The other one is there.
    fn with_other() -> Rig {
        let rig = Rig::new();
        rig.says(5, Vec::new()).unwrap();
        rig.cluster.round();
        assert_eq!(rig.members(), ["a", "b"]);
        rig
    }

    fn other(&self, incarnation: u64) -> MemberCard {
        let (id, state) = (MemberId::of("b"), MemberState::Serving);
        let member = Member { id, incarnation: Incarnation(incarnation), weight: 100, state };
        MemberCard { name: "b".to_owned(), endpoint: self.endpoint.clone(), zone: String::new(), member }
    }

    /// The other one says this, in a life.
    fn says(&self, incarnation: u64, messages: Vec<Message>) -> Result<(), turnkv_proto::Error> {
        self.cluster.told(NAME, self.other(incarnation), MemberId::of("a"), messages)
    }

    /// A tip of the other one's.
    fn tip(&self, incarnation: u64, turn: u32) -> Tip {
        Tip { home: self.other(incarnation).life(), turn, moves: 1, pages: 10 }
    }

    fn publishes(&self, incarnation: u64, name: &str, turn: u32) {
        let tips = vec![(key(name), self.tip(incarnation, turn))];
        self.says(incarnation, vec![Message::Publish { tips, posts: Vec::new() }]).unwrap();
    }

    fn members(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.cluster.watch().borrow().members.iter().map(|card| card.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// The turn of a session that ended at the other one, as far as is known without asking.
    fn turn_at_other(&self, name: &str) -> Option<u32> {
        match self.cluster.whose(&NAMESPACE, &session(name)) {
            Whose::Elsewhere(tip) => {
                assert_eq!(tip.home.member, MemberId::of("b"));
                Some(tip.turn)
            }
            Whose::Here | Whose::Unknown => None,
        }
    }

    fn ends_turn(&self, name: &str, turn: u32) {
        self.cluster.turn_ended(&NAMESPACE, &session(name), turn, &[BlockHash([7; 32])]);
    }

    fn home_turn(&self, name: &str) -> Option<u32> {
        self.cluster.home_tip(&NAMESPACE, &session(name)).map(|tip| tip.turn)
    }
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

fn key(name: &str) -> SessionKey {
    SessionKey::of(&NAMESPACE, &session(name))
}

#[tokio::test]
async fn a_member_alone_knows_its_own_sessions_and_nobody_elses() {
    let rig = Rig::new();
    assert_eq!(rig.members(), ["a"]);
    assert_eq!(rig.cluster.whereabouts(&NAMESPACE, &session("s"), 0).await, Where::Nowhere);
    rig.ends_turn("s", 1);
    assert_eq!(rig.cluster.whereabouts(&NAMESPACE, &session("s"), 0).await, Where::Here);
    assert_eq!((rig.home_turn("s"), rig.cluster.homes()), (Some(1), 1));
    let named = rig.cluster.homes_named(10);
    assert_eq!((named.len(), named[0].1.as_str()), (1, "s"));
    assert!(rig.cluster.homes_named(0).is_empty());
    rig.cluster.session_left(&NAMESPACE, &session("s"));
    assert_eq!(rig.cluster.whereabouts(&NAMESPACE, &session("s"), 0).await, Where::Nowhere);
    assert_eq!((rig.home_turn("s"), rig.cluster.homes_named(10).len()), (None, 0));
    assert!(rig.cluster.asks_all() && rig.cluster.takers(&NAMESPACE, &session("s")).is_empty());
}

#[tokio::test]
async fn what_is_of_another_cluster_or_meant_for_another_member_or_of_a_stranger_is_not_heard() {
    let rig = Rig::with_other();
    let publish = || {
        let tips = vec![(key("s"), rig.tip(5, 3))];
        vec![Message::Publish { tips, posts: Vec::new() }]
    };
    let own = MemberId::of("a");
    let stranger = MemberCard { name: "c".to_owned(), ..rig.other(5) };
    let stranger = MemberCard { member: Member { id: MemberId::of("c"), ..stranger.member }, ..stranger };
    for (cluster, from, to, word) in [
        ("another", rig.other(5), own, "of the cluster `t`, not of `another`"),
        (NAME, rig.other(5), MemberId::of("b"), "another member than the one that was meant"),
        (NAME, stranger, own, "not among"),
    ] {
        let refused = rig.cluster.told(cluster, from, to, publish()).unwrap_err();
        assert!(refused.message.contains(word), "{refused}");
        assert_eq!(rig.turn_at_other("s"), None);
    }
    rig.says(5, publish()).unwrap();
    assert_eq!(rig.turn_at_other("s"), Some(3));
    assert!(rig.cluster.member_of("another", MemberId::of("b")).is_err());
    assert!(rig.cluster.member_of(NAME, MemberId::of("c")).is_err());
    assert_eq!(rig.cluster.member_of(NAME, MemberId::of("b")).unwrap().name, "b");
}

#[tokio::test]
async fn late_and_doubled_words_change_nothing_and_the_latest_turn_counts() {
    let rig = Rig::with_other();
    rig.publishes(5, "s", 3);
    rig.publishes(5, "s", 2);
    rig.publishes(5, "s", 3);
    assert_eq!(rig.turn_at_other("s"), Some(3));
    let withdraw = |turn| vec![Message::Withdraw { session: key("s"), home: rig.other(5).life(), turn }];
    rig.says(5, withdraw(2)).unwrap();
    assert_eq!(rig.turn_at_other("s"), Some(3), "what was withdrawn was an earlier turn");
    rig.says(5, withdraw(3)).unwrap();
    assert_eq!(rig.turn_at_other("s"), None);
    rig.says(5, withdraw(3)).unwrap();
    rig.publishes(5, "s", 4);
    assert_eq!(rig.turn_at_other("s"), Some(4));
    // Of others nobody says anything: what it publishes in another's name is not believed.
    let own = Tip { home: rig.cluster.own().life(), turn: 9, moves: 9, pages: 1 };
    let tips = vec![(key("t"), own)];
    rig.says(5, vec![Message::Publish { tips, posts: Vec::new() }]).unwrap();
    assert_eq!((rig.turn_at_other("t"), rig.home_turn("t")), (None, None));
}

#[tokio::test]
async fn a_life_that_is_over_is_not_heard_any_more() {
    let rig = Rig::with_other();
    rig.publishes(6, "s", 3);
    rig.publishes(5, "s", 9);
    rig.publishes(5, "t", 1);
    rig.cluster.round();
    assert_eq!(rig.turn_at_other("t"), None, "it was said in a life that was over");
    assert_eq!((rig.turn_at_other("s"), rig.members()), (Some(3), vec!["a".to_owned(), "b".to_owned()]));
}

#[tokio::test]
async fn what_a_life_that_is_over_says_of_itself_late_changes_nothing() {
    let rig = Rig::with_other();
    let mut now = rig.other(9);
    now.member.state = MemberState::Draining;
    rig.cluster.told(NAME, now, MemberId::of("a"), Vec::new()).unwrap();
    rig.says(5, Vec::new()).unwrap();
    rig.cluster.round();
    let list = rig.cluster.watch().borrow().clone();
    let other = list.members.iter().find(|card| card.name == "b").unwrap().member;
    assert_eq!((other.incarnation, other.state), (Incarnation(9), MemberState::Draining));
}

#[tokio::test]
async fn two_servers_of_one_name_are_named_where_the_cluster_is_told_of() {
    let rig = Rig::with_other();
    for life in [6, 5, 6, 6] {
        rig.says(life, Vec::new()).unwrap();
    }
    assert_eq!(rig.cluster.report().twice, None, "a late word is not another server");
    tokio::time::sleep(std::time::Duration::from_millis(TWICE_MS + 100)).await;
    rig.says(5, Vec::new()).unwrap();
    assert_eq!(rig.cluster.report().twice.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_session_whose_turn_ends_here_is_here_until_somebody_has_a_later_one_and_its_copy_goes_first_then()
{
    let rig = Rig::with_other();
    rig.publishes(5, "s", 3);
    assert_eq!(rig.turn_at_other("s"), Some(3));
    rig.ends_turn("s", 4);
    assert_eq!((rig.turn_at_other("s"), rig.home_turn("s")), (None, Some(4)));
    let outdone =
        |turn, moves| Message::Outdone { session: key("s"), tip: Tip { moves, ..rig.tip(5, turn) } };
    rig.says(5, vec![outdone(3, 1)]).unwrap();
    assert_eq!(rig.home_turn("s"), Some(4), "an earlier turn outdoes nothing");
    assert!(rig.pool.went.lock().is_empty());
    rig.says(5, vec![outdone(5, 9), outdone(5, 9)]).unwrap();
    assert_eq!((rig.home_turn("s"), rig.turn_at_other("s")), (None, Some(5)));
    assert_eq!(*rig.pool.went.lock(), [session("s")], "once, though it was said twice");
    assert!(rig.cluster.homes_named(10).is_empty());
}

#[tokio::test]
async fn sessions_that_the_pool_lost_are_no_longer_at_home_here_and_a_later_turn_of_one_is() {
    let rig = Rig::new();
    (1..=5).for_each(|at| rig.ends_turn(&format!("s{at}"), at));
    rig.cluster.round();
    assert_eq!(rig.cluster.homes(), 5, "the pool has them");
    rig.pool.lacks_all.store(true, Ordering::Relaxed);
    rig.cluster.round();
    assert_eq!((rig.cluster.homes(), rig.cluster.homes_named(10).len()), (0, 0));
    rig.pool.lacks_all.store(false, Ordering::Relaxed);
    rig.ends_turn("s1", 2);
    rig.cluster.round();
    assert_eq!(rig.home_turn("s1"), Some(2));
}

#[tokio::test]
async fn a_member_that_is_being_emptied_says_so_until_that_is_taken_back() {
    let rig = Rig::with_other();
    assert_eq!(rig.cluster.own().member.state, MemberState::Serving);
    (0..4).for_each(|_| rig.cluster.round());
    assert_eq!(rig.cluster.own().member.state, MemberState::Away, "the other one does not answer");
    let alone = Rig::new();
    assert_eq!(alone.cluster.own().member.state, MemberState::Serving);
    alone.pool.leaves.store(true, Ordering::Relaxed);
    alone.cluster.round();
    assert_eq!(alone.cluster.own().member.state, MemberState::Draining);
    alone.pool.leaves.store(false, Ordering::Relaxed);
    alone.cluster.round();
    assert_eq!(alone.cluster.own().member.state, MemberState::Serving);
}

#[tokio::test]
async fn who_hears_that_its_life_is_over_begins_a_later_one_with_what_it_has() {
    let rig = Rig::with_other();
    rig.ends_turn("s", 4);
    let first = rig.cluster.own().member.incarnation;
    assert!(!rig.cluster.begin_life(false), "this one goes on");
    let later = Incarnation(first.0 + 1_000);
    rig.says(5, vec![Message::Over { latest: first }, Message::Over { latest: Incarnation(1) }]).unwrap();
    assert!(!rig.cluster.begin_life(false), "its own number, and an earlier one, are no news");
    rig.says(5, vec![Message::Over { latest: later }, Message::Over { latest: Incarnation(first.0 + 1) }])
        .unwrap();
    assert!(rig.cluster.begin_life(false));
    let second = rig.cluster.own().member.incarnation;
    assert!(second > later, "{second:?} comes after {later:?}");
    assert!(!rig.cluster.begin_life(false));
    assert_eq!((rig.home_turn("s"), rig.cluster.homes()), (Some(4), 1));
    let home = rig.cluster.home_tip(&NAMESPACE, &session("s")).unwrap().home;
    assert_eq!(home, rig.cluster.own().life(), "it is at home in the life that is now");
}

#[tokio::test]
async fn whoever_watches_the_members_hears_of_each_change_and_of_nothing_else() {
    let rig = Rig::new();
    let mut watch = rig.cluster.watch();
    let alone = watch.borrow_and_update().epoch;
    rig.cluster.round();
    assert!(!watch.has_changed().unwrap(), "nothing changed");
    rig.says(5, Vec::new()).unwrap();
    for _ in 0..20 {
        rig.cluster.round();
    }
    assert!(watch.has_changed().unwrap());
    let list = watch.borrow_and_update().clone();
    assert!(list.epoch != alone && list.own == "a" && list.members.len() == 2);
    rig.says(6, Vec::new()).unwrap();
    rig.cluster.round();
    let incarnation =
        |list: &MemberList| list.members[usize::from(list.members[0].name == "a")].member.incarnation;
    assert!(watch.has_changed().unwrap());
    assert_eq!(incarnation(&watch.borrow_and_update()), Incarnation(6), "another life of the same");
    for _ in 0..3 {
        rig.cluster.round();
    }
    assert!(!watch.has_changed().unwrap(), "nothing changed");
}
