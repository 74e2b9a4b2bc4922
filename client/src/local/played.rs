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

/// Dropped, it takes no more connections.
pub(crate) struct PlayedServer {
    listener: Arc<LocalListener>,
    path: PathBuf,
    heard: Arc<Mutex<Vec<(Verb, Vec<u8>)>>>,
    /// Answers wait while this is set.
    pub(crate) stalled: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

impl PlayedServer {
    pub(crate) fn start(answers: impl Fn(Verb) -> Option<Vec<Said>> + Send + Sync + 'static) -> PlayedServer {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("played.sock");
        let listener = Arc::new(LocalListener::bind(&path, 0o600).unwrap());
        let (heard, stalled) = (Arc::default(), Arc::default());
        let answers: Arc<Answers> = Arc::new(Box::new(answers));
        let taken = (Arc::clone(&listener), Arc::clone(&heard), Arc::clone(&stalled));
        std::thread::spawn(move || {
            let (listener, heard, stalled) = taken;
            while let Ok(socket) = listener.accept() {
                let (heard, stalled, answers) =
                    (Arc::clone(&heard), Arc::clone(&stalled), Arc::clone(&answers));
                std::thread::spawn(move || talk(&socket, &heard, &stalled, &answers));
            }
        });
        PlayedServer { listener, path, heard, stalled, _dir: dir }
    }

    /// The way there.
    pub(crate) fn pool(&self) -> Arc<LocalPool> {
        LocalPool::new(Place::Unix(self.path.clone()))
    }

    /// The messages of this verb that it heard.
    pub(crate) fn heard<M: Message + Default>(&self, verb: Verb) -> Vec<M> {
        let heard = self.heard.lock();
        let of_verb = heard.iter().filter(|(of, _)| *of == verb);
        of_verb.map(|(_, body)| M::decode(&body[..]).unwrap()).collect()
    }
}

impl Drop for PlayedServer {
    fn drop(&mut self) {
        self.listener.shutdown();
    }
}

fn talk(socket: &LocalSocket, heard: &Mutex<Vec<(Verb, Vec<u8>)>>, stalled: &AtomicBool, answers: &Answers) {
    while let Ok(frame) = socket.recv(None) {
        let verb = Verb::try_from(i32::from(frame.verb)).unwrap();
        heard.lock().push((verb, frame.body.to_vec()));
        let said = match verb {
            Verb::Hello => {
                let hello = wire::HelloReply { client: 1, instance: 1, ..Default::default() };
                Some(vec![Said::of(Verb::Hello, 0, &hello)])
            }
            Verb::AbortOffload | Verb::EndReload | Verb::Release | Verb::Settled => Some(Vec::new()),
            asked => {
                while stalled.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                answers(asked)
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

/// Waits until something holds, while tasks of this runtime run.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
