//! `turnkv keep`: holds descriptors for a server that is gone, hands them to the next one of the same user, and lets go of them
//! after a time without one. Owns: that. Must not know: what they are of: it maps nothing, has no threads, and decides nothing.

use super::frames::{DONE, DROP, HELLO, KEEP, KEPT, read_hello, wrong};
use crate::limits::{KEEP_CALL_WAIT, KEPT_MAX, KEPT_NAME_BYTES_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, Frame, LocalListener, LocalSocket};

/// Keeps until there was no server for as long as the last one said, `without_server` before the first one.
///
/// # Errors
/// The socket cannot be listened at; `AddrInUse`: another keeper is there.
pub(crate) fn run(socket: &Path, without_server: Duration) -> io::Result<()> {
    raise_files();
    let listener = LocalListener::bind(socket, 0o600)?;
    let until = Instant::now() + without_server;
    let mut keeper = Keeping { kept: BTreeMap::new(), without_server, until };
    while comes(&listener, keeper.until)? {
        let server = listener.accept()?;
        if server.peer()?.uid == geteuid().as_raw() {
            keeper.serve(&server);
        }
    }
    Ok(())
}

struct Keeping {
    kept: BTreeMap<String, OwnedFd>,
    without_server: Duration,
    /// When all is let go of, if no server comes.
    until: Instant,
}

impl Keeping {
    /// Serves one server for as long as it lives. Who connects and goes again is none: the time without a server goes on.
    fn serve(&mut self, server: &LocalSocket) {
        let mut was_server = false;
        // However the connection ends, what is kept is kept.
        while let Ok(did) = self.hear(server) {
            was_server |= did;
        }
        if was_server {
            self.until = Instant::now() + self.without_server;
        }
    }

    /// Does what is asked next. Whether it was what a server does: it took over what is kept, or gave something.
    fn hear(&mut self, server: &LocalSocket) -> io::Result<bool> {
        let Frame { verb, body, fd, .. } = server.recv(None)?;
        match verb {
            HELLO => {
                self.without_server = read_hello(&body)?;
                self.hand_over(server)?;
                Ok(!self.kept.is_empty())
            }
            KEEP => {
                let kept = self.keep(&body, fd);
                let (flags, why) =
                    kept.as_ref().map_or_else(|why| (FLAG_FAILURE, why.to_string()), |()| (0, String::new()));
                answer_or_end(server, flags, why.as_bytes());
                Ok(kept.is_ok())
            }
            DROP => {
                let was_kept = self.kept.remove(&name(&body)?).is_some();
                answer_or_end(server, 0, &[]);
                Ok(was_kept)
            }
            _ => Err(wrong("a server asked for something else")),
        }
    }

    /// Tells a server all that is kept. It stays kept: the server may end at any moment.
    fn hand_over(&self, server: &LocalSocket) -> io::Result<()> {
        for (name, fd) in &self.kept {
            let deadline = Instant::now() + KEEP_CALL_WAIT;
            server.send_by(KEPT, FLAG_MORE, name.as_bytes(), &[fd.as_fd()], deadline)?;
        }
        answer(server, 0, &[])
    }

    fn keep(&mut self, body: &[u8], fd: Option<OwnedFd>) -> io::Result<()> {
        let (name, fd) = (name(body)?, fd.ok_or_else(|| wrong("there was no descriptor to keep"))?);
        if self.kept.len() >= KEPT_MAX && !self.kept.contains_key(&name) {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "too many descriptors are kept already",
            ));
        }
        self.kept.insert(name, fd);
        Ok(())
    }
}

fn answer(server: &LocalSocket, flags: u8, body: &[u8]) -> io::Result<()> {
    server.send_by(DONE, flags, body, &[], Instant::now() + KEEP_CALL_WAIT)
}

/// Answers who may have gone meanwhile: one that did not wait for this may have said more before.
fn answer_or_end(server: &LocalSocket, flags: u8, body: &[u8]) {
    answer(server, flags, body).unwrap_or_default();
}

fn name(body: &[u8]) -> io::Result<String> {
    let name =
        std::str::from_utf8(body).ok().filter(|name| !name.is_empty() && name.len() <= KEPT_NAME_BYTES_MAX);
    name.map(str::to_owned).ok_or_else(|| wrong("a name is empty, too long, or no text"))
}

/// Whether a server connects until then.
fn comes(listener: &LocalListener, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A slab is a descriptor, and there may be many.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused there are as many as there were; a server is told when these are used up.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .unwrap_or_default();
}

#[cfg(test)]
mod tests;
