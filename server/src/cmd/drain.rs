//! `turnkv drain`: a running server takes nothing more and writes what it has; `--undo` takes that back. Owns: the text.
//! Must not know: what the server does for it.

use super::connect::{address_or_default, connect};
use super::status::human_bytes;
use anyhow::Context;
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{DrainRequest, ResumeRequest};

/// Asks once, and says what is so now.
pub(crate) async fn run(address: Option<&str>, undo: bool) -> anyhow::Result<()> {
    let address = address_or_default(address);
    let mut admin = AdminClient::new(connect(&address).await?);
    let text = if undo {
        let reply = admin.resume(ResumeRequest {}).await.context("the drain is not taken back")?;
        match reply.into_inner().drained {
            true => "the drain is taken back: pages are taken again\n".to_owned(),
            false => "there was no drain: pages are taken as before\n".to_owned(),
        }
    } else {
        let reply = admin.drain(DrainRequest {}).await.context("the server does not drain")?.into_inner();
        let left = human_bytes(reply.dirty_bytes);
        format!(
            "draining: offloads are declined, {left} still to be written; `turnkv drain --undo` takes it back\n"
        )
    };
    super::print(&text)?;
    Ok(())
}
