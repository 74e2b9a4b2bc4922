//! A server of frames for the tests: it says Hello, answers as it is told to, and remembers what it heard.

use super::place::Place;
use super::pool::LocalPool;
use parking_lot::Mutex;
use prost::Message;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{LocalListener, LocalSocket};

/// One frame of an answer.
pub(crate) struct Said {
    pub(crate) verb: u8,
    pub(crate) flags: u8,
    pub(crate) body: Vec<u8>,
}

impl Said {
    pub(crate) fn of(verb: Verb, flags: u8, body: &impl Message) -> Said {
        Said { verb: verb as u8, flags, body: body.encode_to_vec() }
    }
}

/// What is answered to a verb; none: the connection is closed instead.
type Answers = Box<dyn Fn(Verb) -> Option<Vec<Said>> + Send + Sync>;

/// What it says and has heard, changed while it runs.
struct Stage {
    answers: Answers,
    hello: Mutex<wire::HelloReply>,
    stalled: AtomicBool,
    heard: Mutex<Vec<(Verb, Vec<u8>)>>,
}

/// Dropped, it takes no more connections.
pub(crate) struct PlayedServer {
    listener: Arc<LocalListener>,
    path: PathBuf,
    stage: Arc<Stage>,
    _dir: tempfile::TempDir,
}

impl PlayedServer {
    pub(crate) fn start(answers: impl Fn(Verb) -> Option<Vec<Said>> + Send + Sync + 'static) -> PlayedServer {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("played.sock");
        let listener = Arc::new(LocalListener::bind(&path, 0o600).unwrap());
        let stage = Arc::new(Stage {
            answers: Box::new(answers),
            hello: Mutex::new(wire::HelloReply { client: 1, instance: 1, ..Default::default() }),
            stalled: AtomicBool::new(false),
            heard: Mutex::default(),
        });
        let (acceptor, talking) = (Arc::clone(&listener), Arc::clone(&stage));
        let accept = move || {
            while let Ok(socket) = acceptor.accept() {
                let stage = Arc::clone(&talking);
                thread("played-talks", move || stage.talk(&socket));
            }
        };
        thread("played-accepts", accept);
        PlayedServer { listener, path, stage, _dir: dir }
    }

    /// The way there.
    pub(crate) fn pool(&self) -> Arc<LocalPool> {
        LocalPool::new(Place::Unix(self.path.clone()))
    }

    /// Whoever connects from now on is told this: another process, say.
    pub(crate) fn greets(&self, client: u64, instance: u64, memory: u64) {
        *self.stage.hello.lock() = wire::HelloReply { client, instance, memory, ..Default::default() };
    }

    /// Answers wait while it is stalled.
    pub(crate) fn stall(&self, stalled: bool) {
        self.stage.stalled.store(stalled, Ordering::SeqCst);
    }

    /// The messages of this verb that it heard.
    pub(crate) fn heard<M: Message + Default>(&self, verb: Verb) -> Vec<M> {
        let heard = self.stage.heard.lock();
        let of_verb = heard.iter().filter(|(of, _)| *of == verb);
        of_verb.map(|(_, body)| M::decode(&body[..]).unwrap()).collect()
    }
}

impl Drop for PlayedServer {
    fn drop(&mut self) {
        self.listener.shutdown();
    }
}

impl Stage {
    fn talk(&self, socket: &LocalSocket) {
        while let Ok(frame) = socket.recv(None) {
            let verb = Verb::try_from(i32::from(frame.verb)).unwrap();
            self.heard.lock().push((verb, frame.body.to_vec()));
            let said = match verb {
                Verb::Hello => Some(vec![Said::of(Verb::Hello, 0, &*self.hello.lock())]),
                Verb::AbortOffload | Verb::EndReload | Verb::Release | Verb::Settled => continue,
                asked => {
                    while self.stalled.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    (self.answers)(asked)
                }
            };
            let Some(said) = said else { return };
            for Said { verb, flags, body } in said {
                if socket.send(verb, flags, &body, &[]).is_err() {
                    return;
                }
            }
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).unwrap();
}

/// Waits until something holds, while tasks of this runtime run.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
