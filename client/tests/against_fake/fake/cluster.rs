//! The fake's verbs of a cluster. Owns: that it tells nothing, or only late. Must not know: members.

use super::Core;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_stream::Pending;
use tonic::{Request, Response, Status};
use turnkv_proto::wire;
use turnkv_proto::wire::cluster_server::Cluster;

type Told<T> = Result<Response<T>, Status>;

pub(super) struct ClusterVerbs(pub(super) Arc<Core>);

macro_rules! untold {
    ($($verb:ident($asked:ident) -> $told:ident;)*) => {
        #[tonic::async_trait]
        impl Cluster for ClusterVerbs {
            type WatchMembersStream = Pending<Result<wire::MembersReply, Status>>;

            async fn watch_members(&self, _: Request<wire::WatchMembersRequest>) -> Told<Self::WatchMembersStream> {
                self.0.watches.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(self.0.script.tells_late_us.load(Ordering::SeqCst))).await;
                Err(Status::unimplemented("it is in no cluster"))
            }

            $(async fn $verb(&self, _: Request<wire::$asked>) -> Told<wire::$told> {
                Err(Status::unimplemented("it is in no cluster"))
            })*
        }
    };
}

untold! {
    tell(TellRequest) -> TellReply;
    count_pages(CountPagesRequest) -> CountPagesReply;
    name_session(NameSessionRequest) -> NameSessionReply;
    name_prefix(NamePrefixRequest) -> NamePrefixReply;
    take_session(TakeSessionRequest) -> TakeSessionReply;
    hold_prefix(HoldPrefixRequest) -> HoldPrefixReply;
    find(FindRequest) -> FindReply;
    standing(StandingRequest) -> StandingReply;
    forget(ForgetRequest) -> ForgetReply;
    move_away(MoveAwayRequest) -> MoveAwayReply;
}
