//! The fake's verbs of a cluster. Owns: telling what its script says of members and homes, nothing, or late. Must not know: pages.

use super::Core;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use turnkv_proto::wire;
use turnkv_proto::wire::cluster_server::Cluster;

type Told<T> = Result<Response<T>, Status>;

/// What is told of members, without end.
type Telling = Pin<Box<dyn Stream<Item = Result<wire::MembersReply, Status>> + Send>>;

pub(super) struct ClusterVerbs(pub(super) Arc<Core>);

impl Core {
    fn told_members(&self) -> Result<Telling, Status> {
        let members = self.script.member.told.lock().unwrap();
        if members.is_empty() {
            return Err(Status::unimplemented("it is in no cluster"));
        }
        let member = |(state, endpoint): &(wire::MemberState, String)| wire::Member {
            state: *state as i32,
            endpoint: endpoint.clone(),
            ..Default::default()
        };
        let told = wire::MembersReply { members: members.iter().map(member).collect(), ..Default::default() };
        Ok(Box::pin(tokio_stream::once(Ok(told)).chain(tokio_stream::pending())))
    }
}

macro_rules! untold {
    ($($verb:ident($asked:ident) -> $told:ident;)*) => {
        #[tonic::async_trait]
        impl Cluster for ClusterVerbs {
            type WatchMembersStream = Telling;

            async fn watch_members(&self, _: Request<wire::WatchMembersRequest>) -> Told<Self::WatchMembersStream> {
                self.0.watches.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(self.0.script.tells_late_us.load(Ordering::SeqCst))).await;
                self.0.told_members().map(Response::new)
            }

            async fn find(&self, _: Request<wire::FindRequest>) -> Told<wire::FindReply> {
                let endpoint = self.0.script.member.found.lock().unwrap().clone();
                let endpoint = endpoint.ok_or_else(|| Status::unimplemented("it is in no cluster"))?;
                let at = Some(wire::Member { endpoint, ..Default::default() });
                Ok(Response::new(wire::FindReply { at, ..Default::default() }))
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
    look_at_engines(LookAtEnginesRequest) -> LookAtEnginesReply;
    name_prefix(NamePrefixRequest) -> NamePrefixReply;
    take_session(TakeSessionRequest) -> TakeSessionReply;
    hold_prefix(HoldPrefixRequest) -> HoldPrefixReply;
    standing(StandingRequest) -> StandingReply;
    forget(ForgetRequest) -> ForgetReply;
    move_away(MoveAwayRequest) -> MoveAwayReply;
}
