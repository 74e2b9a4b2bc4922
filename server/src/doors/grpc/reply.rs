//! What a verb of any service answers with. Owns: leaving the async threads for what takes long. Must not know: the verbs.

use tonic::{Response, Status};
use turnkv_proto::{Error, ErrorKind};

/// What a verb answers with.
pub(super) type Answer<T> = Result<Response<T>, Status>;

/// Answers with what a verb says that takes long, or writes to the catalog: not on an async thread.
pub(super) async fn blocking<T: Send + 'static>(
    verb: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(verb).await;
    let done = done.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    Ok(Response::new(done?))
}
