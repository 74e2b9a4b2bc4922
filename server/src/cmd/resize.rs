//! `turnkv resize`: a running server's page memory grows or shrinks. Owns: the text, and how often it asks how far that is. Must
//! not know: what the server does for it.

use super::connect::{address_or_default, connect};
use super::status::human_bytes;
use crate::config::Bytes;
use crate::limits::RESIZE_ASK;
use crate::report::misused;
use anyhow::Context;
use clap::Args;
use std::time::{Duration, Instant};
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{ResizeReply, ResizeRequest};

/// What to resize, and how long to watch.
#[derive(Args)]
pub(crate) struct ResizeArguments {
    /// Page memory that the server is to have, e.g. 64GiB; in whole slabs. Without it: how far the last change is.
    #[arg(long)]
    dram: Option<Bytes>,
    /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
    #[arg(long, env = "TURNKV_ADDRESS")]
    address: Option<String>,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
    /// Seconds to watch it; the server goes on after that, and when this command is stopped.
    #[arg(long, default_value_t = 600)]
    wait_s: u64,
}

/// Asks for it, and says how far it is until it is there.
pub(crate) async fn run(arguments: &ResizeArguments) -> anyhow::Result<()> {
    let address = address_or_default(arguments.address.as_deref());
    let mut admin = AdminClient::new(connect(&address).await?);
    let until = Instant::now() + Duration::from_secs(arguments.wait_s);
    let asked = ResizeRequest { dram_bytes: arguments.dram.map_or(0, |bytes| bytes.0) };
    let mut now = admin.resize(asked).await.context("the size is not changed")?.into_inner();
    let wanted = now.wanted_bytes;
    let mut said = None;
    loop {
        let text = if arguments.json { as_json(&now)? } else { as_text(&now) };
        if said.as_ref() != Some(&text) {
            super::print(&text)?;
            said = Some(text);
        }
        if now.wanted_bytes != wanted {
            return Err(misused(
                "somebody asked for another size meanwhile",
                "look at `turnkv resize` without --dram",
            ));
        }
        if now.done || arguments.dram.is_none() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(misused(
                format!("the size is not reached within {} s: the server goes on", arguments.wait_s),
                "see what is said to stand in the way, or ask for another size",
            ));
        }
        tokio::time::sleep(RESIZE_ASK).await;
        now = admin
            .resize(ResizeRequest { dram_bytes: 0 })
            .await
            .context("the server does not answer")?
            .into_inner();
    }
}

fn as_text(reply: &ResizeReply) -> String {
    let (present, wanted) = (human_bytes(reply.present_bytes), human_bytes(reply.wanted_bytes));
    if reply.done {
        return format!(
            "dram is {present}; set dram.bytes in the configuration as well, for the next start\n"
        );
    }
    let mut text = format!("dram {present}, to be {wanted}");
    if reply.leaving_slabs > 0 {
        text += &format!(", {} slabs being emptied", reply.leaving_slabs);
    }
    if reply.dirty_bytes > 0 && reply.present_bytes > reply.wanted_bytes {
        text += &format!(", {} to be written", human_bytes(reply.dirty_bytes));
    }
    if !reply.note.is_empty() {
        text += &format!("; {}", reply.note);
    }
    text + "\n"
}

fn as_json(reply: &ResizeReply) -> anyhow::Result<String> {
    let json = serde_json::json!({
        "wanted_bytes": reply.wanted_bytes, "present_bytes": reply.present_bytes, "leaving_slabs": reply.leaving_slabs,
        "leased_bytes": reply.leased_bytes, "protected_bytes": reply.protected_bytes, "dirty_bytes": reply.dirty_bytes,
        "done": reply.done, "note": reply.note,
    });
    Ok(serde_json::to_string(&json)? + "\n")
}
