//! What a prefill took. Owns: telling the pool, so that it can say what hits are worth. Must not know: pages.

use crate::error::{Error, Result};
use crate::grpc;
use crate::namespace::Namespace;
use std::time::Duration;
use turnkv_proto::wire;

impl Namespace {
    /// Says that the engine prefilled so many tokens in such a time. Worth a call a turn at most: the pool keeps a mean.
    pub async fn report_prefill(&self, tokens: u64, took: Duration) -> Result<()> {
        let micros = u64::try_from(took.as_micros()).map_err(|_| Error::invalid("a prefill of centuries"))?;
        let request = wire::ReportPrefillRequest { namespace: self.wire_id(), tokens, micros };
        let link = self.members.usual();
        let call = link.admit()?;
        let ask = |channel| {
            let request = request.clone();
            async move { grpc::admin(channel).report_prefill(request).await }
        };
        call.end(link.rpc(link.deadline(None), ask).await).map(drop)
    }
}
