//! How all verbs of sessions are asked. Owns: at which member, and that the namespace is open there. Must not know: the verbs.

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result};
use crate::grpc;
use crate::link::Link;
use crate::namespace::Namespace;
use crate::tries::Tries;
use std::future::Future;
use std::sync::Arc;
use tonic::transport::Channel;
use tonic::{Response, Status};
use turnkv_proto::wire;
use turnkv_proto::wire::sessions_client::SessionsClient;

impl Namespace {
    /// One call, about a session or about none, at a member that has it.
    pub(crate) async fn tell<Q, T, F, Fut>(&self, session: Option<&str>, verb: F, request: Q) -> Result<T>
    where
        Q: Clone,
        F: FnMut(SessionsClient<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.tell_from(&mut self.tries(session), session, verb, request, self.link.deadline(None)).await
    }

    /// The same from a member on; who answered last is where `tries` is then.
    pub(crate) async fn tell_from<Q, T, F, Fut>(
        &self,
        tries: &mut Tries,
        session: Option<&str>,
        mut verb: F,
        request: Q,
        deadline: Deadline,
    ) -> Result<T>
    where
        Q: Clone,
        F: FnMut(SessionsClient<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let mut may_find = session.filter(|_| self.members.is_list());
        loop {
            let told = tries.at().tell_there(&mut verb, &request, tries.share(deadline)).await;
            match told {
                Err(error) if tries.go_on(&error, deadline) => {}
                Err(error) if error.kind == ErrorKind::SessionUnknown => {
                    let Some(session) = may_find.take() else { return Err(error) };
                    match tries.at().find_home(session, tries.share(deadline)).await {
                        Some(link) if tries.follow(Arc::clone(&link)) => {
                            self.members.note_place(&self.id(), session, &link);
                        }
                        _ => return Err(error),
                    }
                }
                told => return told,
            }
        }
    }

    /// One call at this member, with the namespace opened again if the server forgot it.
    pub(crate) async fn tell_there<Q, T, F, Fut>(
        &self,
        verb: &mut F,
        request: &Q,
        deadline: Deadline,
    ) -> Result<T>
    where
        Q: Clone,
        F: FnMut(SessionsClient<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let call = self.link.admit()?;
        call.end(self.tell_by(verb, request, deadline).await)
    }

    async fn tell_by<Q, T, F, Fut>(&self, verb: &mut F, request: &Q, deadline: Deadline) -> Result<T>
    where
        Q: Clone,
        F: FnMut(SessionsClient<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let mut attempts = Attempts::default();
        loop {
            match self.link.rpc(deadline, |channel| verb(grpc::sessions(channel), request.clone())).await {
                Ok(reply) => return Ok(reply),
                Err(error) if self.again(&error, &mut attempts, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where this member says that a session is at home; none: it does not know, or nobody can go there.
    async fn find_home(&self, session: &str, deadline: Deadline) -> Option<Arc<Link>> {
        let request = wire::FindRequest {
            namespace: self.wire_id(),
            session: session.to_owned(),
            ..Default::default()
        };
        let ask = |channel| {
            let request = request.clone();
            async move { grpc::cluster(channel).find(request).await }
        };
        let found = self.link.rpc(deadline, ask).await;
        let found = found
            .inspect_err(|error| tracing::debug!(session, %error, "a session's home is not told"))
            .ok()?;
        self.members.named(&found.at.filter(|_| !found.here)?)
    }
}
