//! The Snapshots service: one method a verb. Owns: what takes long as a stream that ends when its caller leaves. Must not know:
//! archives.

use super::reply::{Answer, guest_of};
use crate::doors::codec;
use crate::limits::SNAPSHOT_PROGRESS_QUEUE_MAX;
use crate::snapshots::Snapshots;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use turnkv_proto::{Error, wire};

/// The service.
pub(crate) struct SnapshotsService {
    pub(crate) snapshots: Arc<Snapshots>,
}

/// Messages on how far an operation is, and last what it came to.
type OperationStream<M> = ReceiverStream<Result<M, Status>>;

/// Has an operation run, and tells of it. It is dropped when its caller leaves.
fn telling<M, Work>(work: impl FnOnce(mpsc::Sender<Result<M, Status>>) -> Work) -> Answer<OperationStream<M>>
where
    M: Send + 'static,
    Work: Future<Output = Result<M, Error>> + Send + 'static,
{
    let (tell, told) = mpsc::channel(SNAPSHOT_PROGRESS_QUEUE_MAX);
    let work = work(tell.clone());
    tokio::spawn(async move {
        let done = tokio::select! {
            done = work => done,
            () = tell.closed() => return,
        };
        if tell.send(done.map_err(Status::from)).await.is_err() {
            tracing::debug!("a snapshot's caller left before its answer");
        }
    });
    Ok(Response::new(ReceiverStream::new(told)))
}

/// Tells how far an operation is, where there is room for it: a caller that reads slowly hears of it less often.
fn hint<M>(tell: &mpsc::Sender<Result<M, Status>>, message: M) {
    if let Ok(place) = tell.try_reserve() {
        place.send(Ok(message));
    }
}

#[tonic::async_trait]
impl wire::snapshots_server::Snapshots for SnapshotsService {
    type CreateStream = OperationStream<wire::CreateSnapshotReply>;

    async fn create(&self, request: Request<wire::CreateSnapshotRequest>) -> Answer<Self::CreateStream> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::create(request.into_inner(), &guest)?;
        let snapshots = Arc::clone(&self.snapshots);
        telling(|tell| async move {
            let mut far = |done| hint(&tell, codec::snapshots::creating(done));
            Ok(codec::snapshots::created(snapshots.create(ask, &mut far).await?))
        })
    }

    type RestoreStream = OperationStream<wire::RestoreSnapshotReply>;

    async fn restore(&self, request: Request<wire::RestoreSnapshotRequest>) -> Answer<Self::RestoreStream> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::restore(request.into_inner(), &guest)?;
        let snapshots = Arc::clone(&self.snapshots);
        telling(|tell| async move {
            let mut far = |done| hint(&tell, codec::snapshots::restoring(done));
            Ok(codec::snapshots::restored(snapshots.restore(ask, &mut far).await?))
        })
    }

    type VerifyStream = OperationStream<wire::VerifySnapshotsReply>;

    async fn verify(&self, request: Request<wire::VerifySnapshotsRequest>) -> Answer<Self::VerifyStream> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::verify(request.into_inner(), &guest)?;
        let snapshots = Arc::clone(&self.snapshots);
        telling(|tell| async move {
            let mut far = |done| hint(&tell, codec::snapshots::verifying(done));
            Ok(codec::snapshots::verified(snapshots.verify(&ask, &mut far).await?))
        })
    }

    async fn list(&self, request: Request<wire::ListSnapshotsRequest>) -> Answer<wire::ListSnapshotsReply> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::list(request.into_inner(), &guest)?;
        Ok(Response::new(codec::snapshots::listed(self.snapshots.list(&ask).await?)))
    }

    async fn describe(
        &self,
        request: Request<wire::DescribeSnapshotRequest>,
    ) -> Answer<wire::DescribeSnapshotReply> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::describe(request.into_inner(), &guest)?;
        Ok(Response::new(codec::snapshots::described(self.snapshots.describe(&ask).await?)))
    }

    async fn fork(&self, request: Request<wire::ForkSnapshotRequest>) -> Answer<wire::ForkSnapshotReply> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::fork(request.into_inner(), &guest)?;
        Ok(Response::new(codec::snapshots::forked(self.snapshots.fork(&ask).await?)))
    }

    async fn delete(
        &self,
        request: Request<wire::DeleteSnapshotRequest>,
    ) -> Answer<wire::DeleteSnapshotReply> {
        let guest = guest_of(&request)?;
        let (tenant, snapshot) = codec::snapshots::delete(request.into_inner(), &guest)?;
        self.snapshots.delete(&tenant, snapshot).await?;
        Ok(Response::new(wire::DeleteSnapshotReply {}))
    }

    async fn collect(
        &self,
        request: Request<wire::CollectSnapshotsRequest>,
    ) -> Answer<wire::CollectSnapshotsReply> {
        let guest = guest_of(&request)?;
        let (tenant, limits) = codec::snapshots::collect(request.into_inner(), &guest)?;
        let collected = self.snapshots.collect(&tenant, limits).await?;
        Ok(Response::new(codec::snapshots::collected(collected)))
    }

    async fn export(
        &self,
        request: Request<wire::ExportSnapshotRequest>,
    ) -> Answer<wire::ExportSnapshotReply> {
        let guest = guest_of(&request)?;
        let ask = codec::snapshots::export(request.into_inner(), &guest)?;
        Ok(Response::new(codec::snapshots::exported(self.snapshots.export(ask).await?)))
    }

    async fn import(
        &self,
        request: Request<wire::ImportSnapshotRequest>,
    ) -> Answer<wire::ImportSnapshotReply> {
        let guest = guest_of(&request)?;
        let (tenant, directory) = codec::snapshots::import(request.into_inner(), &guest)?;
        let imported = self.snapshots.import(&tenant, directory).await?;
        Ok(Response::new(codec::snapshots::imported(imported)))
    }
}
