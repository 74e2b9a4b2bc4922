//! The fake's gRPC socket. Owns: the inline verbs and opening namespaces. Must not know: frames.

use super::cluster::ClusterVerbs;
use super::{Core, PAGE_BYTES, lies, remove_stale, shards_of};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use turnkv_proto::wire::cluster_server::ClusterServer;
use turnkv_proto::wire::pool_server::{Pool, PoolServer};
use turnkv_proto::wire::sessions_server::{Sessions, SessionsServer};
use turnkv_proto::wire::{self, OffloadOutcome};
use turnkv_proto::{CheckedSpec, Error, ErrorKind};

/// Small, so that pages travel in several pieces.
const PIECE_BYTES: usize = 1500;

pub(super) fn serve(path: &Path, core: &Arc<Core>, stopped: oneshot::Receiver<()>) -> JoinHandle<()> {
    remove_stale(path);
    let (path, core) = (path.to_owned(), Arc::clone(core));
    let (ready, listening) = std::sync::mpsc::sync_channel(1);
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&path).unwrap();
            ready.send(()).unwrap();
            let server = router(&core).serve_with_incoming(UnixListenerStream::new(listener));
            tokio::select! {
                served = server => served.unwrap(),
                _ = stopped => {}
            }
        });
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("fake-grpc".to_owned()).spawn(work).unwrap();
    listening.recv().unwrap();
    thread
}

/// Returns the address.
pub(super) async fn serve_tcp(core: &Arc<Core>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    drop(tokio::spawn(router(core).serve_with_incoming(TcpListenerStream::new(listener))));
    address
}

fn router(core: &Arc<Core>) -> tonic::transport::server::Router {
    tonic::transport::Server::builder()
        .add_service(PoolServer::new(Service(Arc::clone(core))))
        .add_service(SessionsServer::new(Service(Arc::clone(core))))
        .add_service(ClusterServer::new(ClusterVerbs(Arc::clone(core))))
}

/// What a reload answers, piece by piece.
fn pieces(core: &Core, plan: wire::BeginReloadReply) -> Vec<wire::ReloadReply> {
    let mut pieces = Vec::new();
    for page in plan.pages {
        let Some(slot) = page.slot else {
            pieces.push(wire::ReloadReply { index: page.index, miss: page.miss, ..Default::default() });
            break;
        };
        let bytes = core.slot(slot.offset as usize / PAGE_BYTES).page().to_vec();
        for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            pieces.push(wire::ReloadReply {
                index: page.index,
                offset: (number * PIECE_BYTES) as u64,
                payload: piece.to_vec().into(),
                checksum: if number == 0 { page.checksum } else { 0 },
                tier: page.tier,
                miss: 0,
            });
        }
    }
    pieces
}

struct Service(Arc<Core>);

impl Service {
    /// Holds an answer back while the script says so.
    async fn pace(&self) {
        while self.0.script.stalled.load(Ordering::SeqCst) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

#[tonic::async_trait]
impl Pool for Service {
    type BeginReloadStream = ReceiverStream<Result<wire::BeginReloadReply, Status>>;
    type OffloadStream = ReceiverStream<Result<wire::OffloadReply, Status>>;
    type ReloadStream = ReceiverStream<Result<wire::ReloadReply, Status>>;

    async fn open_namespace(
        &self,
        request: Request<wire::OpenNamespaceRequest>,
    ) -> Result<Response<wire::OpenNamespaceReply>, Status> {
        self.pace().await;
        let spec = request.into_inner().spec.unwrap();
        let spec = CheckedSpec::try_from(&spec).map_err(Error::from)?;
        self.0.opens.fetch_add(1, Ordering::SeqCst);
        self.0.pool.lock().unwrap().namespaces.insert(spec.id().0.to_vec());
        let mut reply = wire::OpenNamespaceReply {
            namespace: spec.id().0.to_vec().into(),
            shard_bytes: spec.shard_bytes(),
            page_tokens: spec.page_tokens(),
        };
        lies::tell(&self.0.script.lies.namespace, &mut reply);
        Ok(Response::new(reply))
    }

    async fn lookup(
        &self,
        request: Request<wire::LookupRequest>,
    ) -> Result<Response<wire::LookupReply>, Status> {
        self.pace().await;
        Ok(Response::new(self.0.lookup(request.get_ref())?))
    }

    async fn offload(
        &self,
        request: Request<Streaming<wire::OffloadRequest>>,
    ) -> Result<Response<Self::OffloadStream>, Status> {
        self.pace().await;
        let mut stream = request.into_inner();
        let core = Arc::clone(&self.0);
        let (replies, outgoing) = mpsc::channel(4);
        let begin = stream.message().await?.unwrap().begin.unwrap();
        core.check_namespace(&begin.namespace)?;
        core.check_busy()?;
        tokio::spawn(async move {
            let begun = core.begin_offload(&begin);
            let lease = begun.lease;
            let fill: Vec<u32> = begun
                .outcomes()
                .zip(0..)
                .filter(|(o, _)| *o == OffloadOutcome::Granted)
                .map(|(_, p)| p)
                .collect();
            let slots: Vec<usize> =
                begun.slots.iter().map(|slot| slot.offset as usize / PAGE_BYTES).collect();
            let _sent = replies.send(Ok(wire::OffloadReply { begin: Some(begun), commit: None })).await;
            while let Ok(Some(piece)) = stream.message().await {
                if !piece.commit {
                    let slot = slots[fill.iter().position(|page| *page == piece.index).unwrap()];
                    core.slot(slot).claim().unwrap().fill_at(piece.offset as usize, &piece.payload);
                    continue;
                }
                let (pages, checksums, durable) = (fill.clone(), piece.checksums, piece.durable);
                let commit = core
                    .commit(&wire::CommitOffloadRequest { lease, client: 0, pages, checksums, durable })
                    .unwrap();
                let _sent = replies.send(Ok(wire::OffloadReply { begin: None, commit: Some(commit) })).await;
                return;
            }
            core.pool.lock().unwrap().writes.remove(&lease);
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn reload(
        &self,
        request: Request<wire::ReloadRequest>,
    ) -> Result<Response<Self::ReloadStream>, Status> {
        self.pace().await;
        let core = Arc::clone(&self.0);
        core.check_namespace(&request.get_ref().namespace)?;
        core.check_busy()?;
        let ask = request.get_ref();
        let plan = core.begin_reload(&shards_of(&ask.hashes, ask.shard, ask.shards), false);
        let (replies, outgoing) = mpsc::channel(4);
        let mut pieces = pieces(&core, plan);
        lies::tell(&core.script.lies.pieces, &mut pieces);
        tokio::spawn(async move {
            for piece in pieces {
                if replies.send(Ok(piece)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn begin_offload(
        &self,
        _: Request<wire::BeginOffloadRequest>,
    ) -> Result<Response<wire::BeginOffloadReply>, Status> {
        Err(Status::unimplemented("use the local socket"))
    }

    async fn commit_offload(
        &self,
        _: Request<wire::CommitOffloadRequest>,
    ) -> Result<Response<wire::CommitOffloadReply>, Status> {
        Err(Status::unimplemented("use the local socket"))
    }

    async fn abort_offload(
        &self,
        _: Request<wire::AbortOffloadRequest>,
    ) -> Result<Response<wire::AbortOffloadReply>, Status> {
        Err(Status::unimplemented("use the local socket"))
    }

    async fn begin_reload(
        &self,
        _: Request<wire::BeginReloadRequest>,
    ) -> Result<Response<Self::BeginReloadStream>, Status> {
        Err(Status::unimplemented("use the local socket"))
    }

    async fn end_reload(
        &self,
        _: Request<wire::EndReloadRequest>,
    ) -> Result<Response<wire::EndReloadReply>, Status> {
        Err(Status::unimplemented("use the local socket"))
    }
}

#[tonic::async_trait]
impl Sessions for Service {
    async fn begin_turn(
        &self,
        request: Request<wire::BeginTurnRequest>,
    ) -> Result<Response<wire::BeginTurnReply>, Status> {
        self.pace().await;
        self.0.check_namespace(&request.get_ref().namespace)?;
        self.0.turns_asked.fetch_add(1, Ordering::SeqCst);
        let home = self.0.script.home.lock().unwrap().clone().filter(|_| request.get_ref().may_go);
        if let Some(endpoint) = home {
            let home = Some(wire::Member { endpoint, ..Default::default() });
            return Ok(Response::new(wire::BeginTurnReply { home, ..Default::default() }));
        }
        self.0.turns_begun.fetch_add(1, Ordering::SeqCst);
        let mut reply = wire::BeginTurnReply {
            turn: 1,
            pages: 5,
            dram: 4,
            tail_tokens: 3,
            tail: vec![9; 32].into(),
            archived: 0,
            ..Default::default()
        };
        lies::tell(&self.0.script.lies.begin_turn, &mut reply);
        Ok(Response::new(reply))
    }

    async fn end_turn(
        &self,
        request: Request<wire::EndTurnRequest>,
    ) -> Result<Response<wire::EndTurnReply>, Status> {
        let ask = request.get_ref();
        self.0.script.member.ends.fetch_add(1, Ordering::SeqCst);
        if self.0.script.member.knows_none.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::SessionUnknown, "no such session").into());
        }
        Ok(Response::new(wire::EndTurnReply {
            pages: ask.keep + ask.hashes.len() as u32 / 32,
            archiving: ask.archive,
        }))
    }

    async fn fork(&self, _: Request<wire::ForkRequest>) -> Result<Response<wire::ForkReply>, Status> {
        Err(Error::new(ErrorKind::SessionUnknown, "no such session").into())
    }

    async fn supersede(
        &self,
        request: Request<wire::SupersedeRequest>,
    ) -> Result<Response<wire::SupersedeReply>, Status> {
        Ok(Response::new(wire::SupersedeReply { pages: request.get_ref().keep }))
    }

    async fn close(&self, _: Request<wire::CloseRequest>) -> Result<Response<wire::CloseReply>, Status> {
        Ok(Response::new(wire::CloseReply::default()))
    }

    async fn prefetch(
        &self,
        _: Request<wire::PrefetchRequest>,
    ) -> Result<Response<wire::PrefetchReply>, Status> {
        Err(Error::busy(40, "too many promotions").into())
    }

    async fn list(&self, _: Request<wire::ListRequest>) -> Result<Response<wire::ListReply>, Status> {
        let info = wire::SessionInfo {
            namespace: vec![1; 32].into(),
            session: "a".to_owned(),
            turn: 2,
            ..Default::default()
        };
        Ok(Response::new(wire::ListReply { sessions: vec![info], total: 7 }))
    }

    async fn describe(
        &self,
        request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeReply>, Status> {
        let ask = request.into_inner();
        let info = wire::SessionInfo {
            namespace: ask.namespace,
            session: ask.session,
            pages: 5,
            ..Default::default()
        };
        let (info, tail, engine) = (Some(info), vec![9; 32].into(), "gpu-3".to_owned());
        Ok(Response::new(wire::DescribeReply { info, tail, engine, dram_pages: 4, ..Default::default() }))
    }

    async fn pin(&self, request: Request<wire::PinRequest>) -> Result<Response<wire::PinReply>, Status> {
        let pages = request.get_ref().hashes.len() as u32 / 32;
        let pin = vec![8; 32].into();
        Ok(Response::new(wire::PinReply { pages, pin, ends_in_ms: 60_000, ..Default::default() }))
    }

    async fn unpin(
        &self,
        request: Request<wire::UnpinRequest>,
    ) -> Result<Response<wire::UnpinReply>, Status> {
        Ok(Response::new(wire::UnpinReply { found: request.get_ref().pin.as_ref() == [8; 32] }))
    }

    async fn route(
        &self,
        request: Request<wire::RouteRequest>,
    ) -> Result<Response<wire::RouteReply>, Status> {
        let choice = |engine: wire::RouteEngine| wire::RouteChoice {
            name: engine.name,
            held_pages: engine.used_pages,
            ..Default::default()
        };
        let choices = request.into_inner().engines.into_iter().rev().map(choice).collect();
        Ok(Response::new(wire::RouteReply { choices, pool_pages: 6 }))
    }
}
