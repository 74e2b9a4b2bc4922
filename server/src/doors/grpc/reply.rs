//! What a verb of any service is asked by, and answers with. Owns: leaving the async threads for what takes long. Must not know:
//! the verbs.

use crate::access::Guest;
use tonic::{Request, Response, Status};
use turnkv_proto::{Error, ErrorKind};

/// What a verb answers with.
pub(super) type Answer<T> = Result<Response<T>, Status>;

/// Whose request it is: every one of a verb has passed the layer that says so.
pub(super) fn guest_of<T>(request: &Request<T>) -> Result<Guest, Error> {
    let guest = request.extensions().get::<Guest>().cloned();
    guest.ok_or_else(|| Error::new(ErrorKind::Internal, "a request that nobody admitted"))
}

/// Answers with what a verb says that takes long, or writes to the catalog: not on an async thread.
pub(super) async fn blocking<T: Send + 'static>(
    verb: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(verb).await;
    let done = done.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    Ok(Response::new(done?))
}
