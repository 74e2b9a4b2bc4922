//! The doors of events as ZeroMQ's sockets find them: who is told what, who is turned away, and that places come back.

use super::*;
use crate::config::EventsConfig;
use crate::events::zmtp::{self, Frame, GREETING_BYTES, read_frame};
use crate::limits::{EVENTS_BATCH_MAX, EVENTS_FRAME_BYTES_MAX, EVENTS_TOPICS_MAX};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use turnkv_pool::{PageChange, PageTier};
use turnkv_proto::{BlockHash, NamespaceId};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const END: u64 = u64::MAX;

/// Both doors, open at ports that the system chose.
struct Rig {
    events: Arc<Events>,
    publish: SocketAddr,
    replay: SocketAddr,
}

impl Rig {
    async fn new(kept_bytes: u64) -> Rig {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = EventsConfig::at(any);
        (config.replay, config.kept_bytes) = (Some(any), kept_bytes);
        let events = Events::new(&config);
        let doors = EventDoors::open(&events).await.unwrap();
        let publish = doors.publish.local_addr().unwrap();
        let replay = doors.replay.as_ref().unwrap().local_addr().unwrap();
        tokio::spawn(doors.run());
        tokio::spawn(Arc::clone(&events).run());
        let rig = Rig { events, publish, replay };
        rig.published(1).await;
        rig
    }

    /// Waits until so many messages were published.
    async fn published(&self, messages: u64) {
        let mut next = self.events.next.subscribe();
        let all = next.wait_for(|next| *next >= messages);
        timeout(SOON, all).await.expect("it is published").unwrap();
    }

    /// Tells of pages, one message each.
    async fn tell(&self, pages: std::ops::Range<u8>) {
        for page in pages {
            let next = *self.events.next.borrow() + 1;
            self.events.tell(vec![change(page)]);
            self.published(next).await;
        }
    }
}

fn change(page: u8) -> PageChange {
    let (namespace, hash) = (NamespaceId([1; 32]), BlockHash([page; 32]));
    PageChange { namespace, page_tokens: 16, hash, parent: None, tier: PageTier::Dram, here: true }
}

/// The other end of a connection.
struct Peer(TcpStream);

impl Peer {
    /// One that is let in.
    async fn greeted(at: SocketAddr, socket: &str) -> Peer {
        let mut peer = Peer(TcpStream::connect(at).await.unwrap());
        assert!(peer.greet(socket).await, "{socket} is let in");
        peer
    }

    /// Whether the door goes on after these first words.
    async fn greet(&mut self, socket: &str) -> bool {
        let words = [&zmtp::greeting()[..], &zmtp::ready(socket)].concat();
        if self.0.write_all(&words).await.is_err() {
            return false;
        }
        let mut theirs = [0; GREETING_BYTES];
        if timeout(SOON, self.0.read_exact(&mut theirs)).await.unwrap().is_err() {
            return false;
        }
        assert!(zmtp::check_greeting(&theirs).is_ok());
        let Some(ready) = self.frame().await else { return false };
        assert!(matches!(zmtp::socket_of(&ready).as_deref(), Some("PUB" | "ROUTER")));
        // Its word is there before it has judged ours: whoever is asked something knows.
        self.is_heard().await
    }

    /// Everything that was said was heard: a PING comes back.
    async fn is_heard(&mut self) -> bool {
        if self.0.write_all(b"\x04\x07\x04PING\0\0").await.is_err() {
            return false;
        }
        self.frame().await.is_some_and(|pong| pong.is_command && pong.body == b"\x04PONG")
    }

    /// The next frame; none: the connection ended.
    async fn frame(&mut self) -> Option<Frame> {
        timeout(SOON, read_frame(&mut self.0)).await.expect("a frame, or the end").ok()
    }

    async fn frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for at in 0..count {
            let frame = self.frame().await.expect("a message");
            assert_eq!(frame.more, at + 1 < count, "{frame:?}");
            found.push(frame.body);
        }
        found
    }

    async fn says(&mut self, frames: &[&[u8]]) {
        self.0.write_all(&zmtp::message(frames)).await.unwrap();
    }

    async fn has_ended(&mut self) -> bool {
        self.frame().await.is_none()
    }

    /// Asks for what was said from a number on: the numbers that came.
    async fn replayed(&mut self, from: u64) -> Vec<u64> {
        self.says(&[b"", &from.to_be_bytes()]).await;
        let mut numbers = Vec::new();
        loop {
            let answer = self.frames(3).await;
            let number = u64::from_be_bytes(answer[1].as_slice().try_into().unwrap());
            assert!(answer[0].is_empty());
            if number == END {
                assert!(answer[2].is_empty());
                return numbers;
            }
            assert!(!answer[2].is_empty());
            numbers.push(number);
        }
    }
}

#[tokio::test]
async fn a_subscriber_is_told_of_its_topics_from_now_on_in_order_and_no_more_when_it_has_enough() {
    let rig = Rig::new(1 << 20).await;
    rig.tell(0..3).await;
    let mut peer = Peer::greeted(rig.publish, "SUB").await;
    rig.tell(3..4).await;
    peer.says(&[b"\x01turn"]).await;
    assert!(peer.is_heard().await);
    rig.tell(4..7).await;
    for number in 5_u64..8 {
        let said = peer.frames(3).await;
        assert_eq!((&said[0], &said[1][..]), (&rig.events.topic(), &number.to_be_bytes()[..]));
        let page = [number as u8 - 1; 8];
        assert!(said[2].windows(8).any(|eight| eight == page), "message {number} is of another page");
    }
    peer.says(&[b"\x01elsewhere"]).await;
    peer.says(&[b"\x00never asked for"]).await;
    assert!(peer.is_heard().await, "what it never asked for it cannot give up");
    rig.tell(7..8).await;
    assert_eq!(peer.frames(3).await[1], 8_u64.to_be_bytes(), "told once, though two topics are asked for");
    peer.says(&[b"\x00turn"]).await;
    assert!(peer.is_heard().await);
    rig.tell(8..10).await;
    assert!(peer.is_heard().await, "only its PONG comes");
}

#[tokio::test]
async fn a_topic_that_was_asked_for_twice_is_given_up_twice() {
    let rig = Rig::new(1 << 20).await;
    let mut peer = Peer::greeted(rig.publish, "XSUB").await;
    peer.says(&[b"\x01"]).await;
    peer.says(&[b"\x01"]).await;
    peer.says(&[b"\x00"]).await;
    assert!(peer.is_heard().await);
    rig.tell(1..2).await;
    assert_eq!(peer.frames(3).await[1], 1_u64.to_be_bytes(), "all topics begin with nothing");
    peer.says(&[b"\x00"]).await;
    assert!(peer.is_heard().await);
    rig.tell(2..3).await;
    assert!(peer.is_heard().await, "only its PONG comes");
}

#[tokio::test]
async fn who_missed_messages_is_given_those_that_are_kept_and_then_the_end() {
    let rig = Rig::new(1 << 20).await;
    rig.tell(0..5).await;
    for socket in ["REQ", "DEALER", "ROUTER"] {
        let mut peer = Peer::greeted(rig.replay, socket).await;
        assert_eq!(peer.replayed(0).await, (0..6).collect::<Vec<u64>>());
        assert_eq!(peer.replayed(4).await, [4, 5], "one connection asks again and again");
        assert_eq!(peer.replayed(6).await, [0_u64; 0], "there is none after the last one");
        assert_eq!(peer.replayed(u64::MAX).await, [0_u64; 0]);
    }
}

#[tokio::test]
async fn messages_that_found_no_room_are_missing_at_the_beginning_only() {
    // Each message of one page has some 200 bytes.
    let rig = Rig::new(1_000).await;
    rig.tell(0..20).await;
    let mut peer = Peer::greeted(rig.replay, "DEALER").await;
    let numbers = peer.replayed(0).await;
    assert!((2..20).contains(&numbers.len()), "{numbers:?}");
    assert_eq!(
        numbers,
        (21 - numbers.len() as u64..21).collect::<Vec<u64>>(),
        "the last ones, without a gap"
    );
}

#[tokio::test]
async fn more_changes_than_go_into_a_message_go_into_the_next_one() {
    let rig = Rig::new(1 << 20).await;
    rig.events.tell(vec![change(1); EVENTS_BATCH_MAX]);
    rig.published(2).await;
    rig.events.tell(vec![change(1); EVENTS_BATCH_MAX + 1]);
    rig.published(4).await;
    rig.events.tell(Vec::new());
    let kept = rig.events.kept.lock();
    let bytes = |number| kept.from(number).map(|(_, payload)| payload.len());
    assert_eq!((bytes(1), bytes(4)), (bytes(2), None));
    assert!(bytes(3) < Some(400), "one change alone: {:?}", bytes(3));
}

#[tokio::test]
async fn whoever_is_not_what_a_door_speaks_with_is_turned_away_by_it() {
    let rig = Rig::new(1 << 20).await;
    for (at, socket) in [(rig.publish, "REQ"), (rig.publish, "PUB"), (rig.replay, "SUB"), (rig.replay, "REP")]
    {
        let mut peer = Peer(TcpStream::connect(at).await.unwrap());
        assert!(!peer.greet(socket).await, "{socket} at {at}");
    }
    let mut old = zmtp::greeting();
    old[10] = 2;
    for words in [
        &[0; GREETING_BYTES][..],
        &old,
        b"GET / HTTP/1.1\r\nhost: events\r\nx-padding-padding-padding-padding-padding: y\r\n\r\n",
    ] {
        let mut peer = Peer(TcpStream::connect(rig.publish).await.unwrap());
        peer.0.write_all(words).await.unwrap();
        let mut all = Vec::new();
        // It may be told of the end by a reset, where it had more to say.
        drop(timeout(SOON, peer.0.read_to_end(&mut all)).await.expect("it ends"));
        assert!(all.len() <= GREETING_BYTES, "it is told nothing but the greeting");
    }
    let mut good = Peer::greeted(rig.publish, "SUB").await;
    assert!(good.is_heard().await, "others are served as before");
}

#[tokio::test]
async fn a_subscriber_that_asks_for_too_much_is_ended() {
    let rig = Rig::new(1 << 20).await;
    let mut many = Peer::greeted(rig.publish, "SUB").await;
    for topic in 0..EVENTS_TOPICS_MAX as u8 {
        many.says(&[&[1, topic]]).await;
    }
    assert!(many.is_heard().await, "as many as one may ask for");
    many.says(&[&[1, 255]]).await;
    assert!(many.has_ended().await, "one more");
    let mut long = Peer::greeted(rig.publish, "SUB").await;
    long.says(&[&vec![1; EVENTS_FRAME_BYTES_MAX as usize]]).await;
    assert!(long.is_heard().await, "the longest that is read");
    long.says(&[&vec![1; EVENTS_FRAME_BYTES_MAX as usize + 1]]).await;
    assert!(long.has_ended().await, "one byte more");
}

#[tokio::test]
async fn a_question_that_is_none_ends_its_connection() {
    let rig = Rig::new(1 << 20).await;
    let number = 0_u64.to_be_bytes();
    let questions: [&[&[u8]]; 6] = [
        &[&number],
        &[b"not empty", &number],
        &[b"", &number[..7]],
        &[b"", &[0; 9]],
        &[b"", b"", &number],
        &[b""],
    ];
    for question in questions {
        let mut peer = Peer::greeted(rig.replay, "DEALER").await;
        peer.says(question).await;
        assert!(peer.has_ended().await, "{question:?}");
    }
}

#[tokio::test]
async fn one_connection_more_than_may_be_is_ended_at_once_and_each_that_leaves_makes_room() {
    let rig = Rig::new(1 << 20).await;
    let mut peers = Vec::new();
    for _ in 0..EVENTS_REPLAYS_MAX {
        peers.push(Peer::greeted(rig.replay, "REQ").await);
    }
    for _ in 0..3 {
        let mut other = Peer(TcpStream::connect(rig.replay).await.unwrap());
        assert!(!other.greet("REQ").await, "there is no place for it");
    }
    let mut subscriber = Peer::greeted(rig.publish, "SUB").await;
    assert!(subscriber.is_heard().await, "the other door has places of its own");
    drop(peers.pop());
    let came = async {
        loop {
            let mut other = Peer(TcpStream::connect(rig.replay).await.unwrap());
            if other.greet("REQ").await {
                return other.replayed(0).await;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(timeout(SOON, came).await.expect("its place is free"), [0]);
}
