//! The fake's local socket. Owns: frames in and out. Must not know: what leases mean.

use super::{Core, lies, remove_stale, shards_of};
use prost::Message;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, Frame, LocalListener, LocalSocket};

pub(super) fn serve(path: &Path, core: &Arc<Core>) -> (Arc<LocalListener>, JoinHandle<()>) {
    remove_stale(path);
    let listener = Arc::new(LocalListener::bind(path, 0o600).unwrap());
    let (acceptor, core) = (Arc::clone(&listener), Arc::clone(core));
    let accept = move || {
        while let Ok(socket) = acceptor.accept() {
            if core.script.no_room.load(Ordering::SeqCst) {
                let full = turnkv_proto::Error::new(turnkv_proto::ErrorKind::Limit, "no room here");
                socket
                    .send(Verb::Hello as u8, FLAG_FAILURE, &full.to_failure().encode_to_vec(), &[])
                    .unwrap();
                core.refused.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let socket = Arc::new(socket);
            core.sockets.lock().unwrap().push(Arc::downgrade(&socket));
            core.connections.fetch_add(1, Ordering::SeqCst);
            core.accepted.fetch_add(1, Ordering::SeqCst);
            let core = Arc::clone(&core);
            let talk = move || {
                let instance = core.instance.load(Ordering::SeqCst);
                while let Ok(frame) = socket.recv(None) {
                    if core.instance.load(Ordering::SeqCst) != instance
                        || answer(&core, &socket, frame).is_err()
                    {
                        break;
                    }
                }
                drop(socket);
                core.connections.fetch_sub(1, Ordering::SeqCst);
            };
            std::thread::Builder::new().name("fake-local".to_owned()).spawn(talk).unwrap();
        }
    };
    let thread = std::thread::Builder::new().name("fake-accept".to_owned()).spawn(accept).unwrap();
    (listener, thread)
}

fn answer(core: &Core, socket: &LocalSocket, frame: Frame) -> std::io::Result<()> {
    let verb = Verb::try_from(i32::from(frame.verb)).unwrap();
    let body = &frame.body[..];
    if is_told(core, verb, body) {
        return Ok(()); // it has no answer
    }
    if verb == Verb::Renew {
        core.renewals.lock().unwrap().push(Instant::now());
    }
    if verb != Verb::Hello && !core.pace() {
        return Err(std::io::Error::other("cut by the script"));
    }
    if core.script.garbage.load(Ordering::SeqCst) && verb != Verb::Hello {
        let garbage = [0xff; 64];
        rustix::io::write(socket.as_fd(), &garbage)?;
        return Ok(());
    }
    let leases = matches!(verb, Verb::AttachSlab | Verb::BeginOffload | Verb::BeginReload);
    let busy = if leases { core.check_busy() } else { Ok(()) };
    if let Err(busy) = busy {
        return socket.send(frame.verb, FLAG_FAILURE, &busy.to_failure().encode_to_vec(), &[]);
    }
    let reply = match verb {
        Verb::Hello => Ok(hello(core, body)),
        Verb::AttachSlab => {
            let slab_bytes = core.region.len() as u64;
            let body = wire::AttachSlabReply { slab_bytes }.encode_to_vec();
            return socket.send(frame.verb, 0, &body, &[core.region.fd()]);
        }
        Verb::Lookup => {
            core.lookup(&wire::LookupRequest::decode(body).unwrap()).map(|reply| reply.encode_to_vec())
        }
        Verb::BeginOffload => {
            let ask = wire::BeginOffloadRequest::decode(body).unwrap();
            core.check_namespace(&ask.namespace).map(|()| core.begin_offload(&ask).encode_to_vec())
        }
        Verb::CommitOffload => {
            core.commit(&wire::CommitOffloadRequest::decode(body).unwrap()).map(|reply| reply.encode_to_vec())
        }
        Verb::BeginReload => {
            let ask = wire::BeginReloadRequest::decode(body).unwrap();
            if core.script.page_frames.load(Ordering::SeqCst) && core.check_namespace(&ask.namespace).is_ok()
            {
                return frames(core, socket, &ask);
            }
            begin_reload(core, &ask)
        }
        Verb::Reserve | Verb::CommitReserved | Verb::Renew | Verb::TakeOver
            if core.script.holds.load(Ordering::SeqCst) =>
        {
            core.of_held(verb, body)
        }
        // As a local socket says of what is for a network, and a server of what it does not know.
        Verb::Reserve
        | Verb::CommitReserved
        | Verb::Renew
        | Verb::Release
        | Verb::OpenRail
        | Verb::RemoteOffload
        | Verb::RemoteReload
        | Verb::TakeOver => Err(turnkv_proto::Error::invalid("there is no such verb here")),
        Verb::AbortOffload | Verb::EndReload | Verb::Settled | Verb::Unspecified => unreachable!(),
    };
    let verb =
        if core.script.wrong_verb.load(Ordering::SeqCst) && verb != Verb::Hello { 99 } else { frame.verb };
    match reply {
        Ok(body) => socket.send(verb, 0, &body, &[]),
        Err(error) => socket.send(verb, FLAG_FAILURE, &error.to_failure().encode_to_vec(), &[]),
    }
}

/// Takes note of what has no answer.
fn is_told(core: &Core, verb: Verb, body: &[u8]) -> bool {
    match verb {
        Verb::AbortOffload | Verb::EndReload => end(core, verb, body),
        Verb::Release if core.script.holds.load(Ordering::SeqCst) => {
            core.release(&wire::ReleaseRequest::decode(body).unwrap());
        }
        Verb::Settled => {
            let settled = wire::SettledRequest::decode(body).unwrap();
            let instance = core.instance.load(Ordering::SeqCst);
            core.settled.lock().unwrap().push((instance, settled.mapped));
        }
        _ => return false,
    }
    true
}

fn hello(core: &Core, body: &[u8]) -> Vec<u8> {
    let ask = wire::HelloRequest::decode(body).unwrap();
    let instance = core.instance.load(Ordering::SeqCst);
    // An own number for each process of the fake: a client of an old one is not known.
    let client = if ask.client == instance * 1000 { ask.client } else { instance * 1000 };
    let version = "fake".to_owned();
    let memory = core.script.held.memory.load(Ordering::SeqCst);
    wire::HelloReply { client, version, instance, memory }.encode_to_vec()
}

fn begin_reload(core: &Core, ask: &wire::BeginReloadRequest) -> Result<Vec<u8>, turnkv_proto::Error> {
    core.check_namespace(&ask.namespace)?;
    let mut reply = core.begin_reload(&asked(ask), true);
    lies::tell(&core.script.lies.begin_reload, &mut reply);
    Ok(reply.encode_to_vec())
}

fn asked(ask: &wire::BeginReloadRequest) -> Vec<turnkv_proto::BlockHash> {
    shards_of(&ask.hashes, ask.shard, ask.shards)
}

/// One page a frame, late.
fn frames(core: &Core, socket: &LocalSocket, ask: &wire::BeginReloadRequest) -> std::io::Result<()> {
    let mut whole = core.begin_reload(&asked(ask), true);
    let pages = std::mem::take(&mut whole.pages);
    let verb = Verb::BeginReload as u8;
    socket.send(verb, FLAG_MORE, &whole.encode_to_vec(), &[])?;
    let count = pages.len();
    for (index, page) in pages.into_iter().enumerate() {
        std::thread::sleep(Duration::from_micros(core.script.delay_us.load(Ordering::SeqCst)));
        let frame = wire::BeginReloadReply { pages: vec![page], ..Default::default() };
        socket.send(verb, if index + 1 < count { FLAG_MORE } else { 0 }, &frame.encode_to_vec(), &[])?;
    }
    Ok(())
}

fn end(core: &Core, verb: Verb, body: &[u8]) {
    let mut pool = core.pool.lock().unwrap();
    if verb == Verb::AbortOffload {
        let ask = wire::AbortOffloadRequest::decode(body).unwrap();
        assert_eq!(ask.client, core.instance.load(Ordering::SeqCst) * 1000);
        if pool.writes.remove(&ask.lease).is_some() {
            pool.aborted += 1;
        }
    } else {
        let ask = wire::EndReloadRequest::decode(body).unwrap();
        assert_eq!(ask.client, core.instance.load(Ordering::SeqCst) * 1000);
        pool.corrupt.extend(ask.corrupt);
        if pool.reads.remove(&ask.lease).is_some() {
            pool.ended += 1;
        }
    }
}
