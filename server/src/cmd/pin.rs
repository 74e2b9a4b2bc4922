//! `turnkv pin`: pages that many sessions share are let go of last, here and, if asked for, at another member of the cluster, too;
//! `--undo` takes that back. Owns: the text. Must not know: what the server does for it.

use super::connect::{address_or_default, connect_patiently};
use super::named::{hashes, hex, id, namespace_of};
use super::print_as;
use crate::report::misused;
use anyhow::Context;
use clap::{ArgGroup, Args};
use serde_json::json;
use std::path::PathBuf;
use turnkv_pool::limits::PROTECTIONS_PER_TENANT_MAX;
use turnkv_proto::wire;
use wire::sessions_client::SessionsClient;

/// What to pin, where, and for how long.
#[derive(Args)]
#[command(group = ArgGroup::new("what").args(["session", "prefix", "undo"]).required(true).multiple(true))]
pub(crate) struct PinArguments {
    /// The session whose leading pages are pinned; with --undo one of the pin's namespace.
    #[arg(long, conflicts_with = "prefix")]
    session: Option<String>,
    /// A file with the prefix's page hashes, 64 hexadecimal digits a line, the first page first.
    #[arg(long, conflicts_with = "undo")]
    prefix: Option<PathBuf>,
    /// So many leading pages of the session; without, all of them.
    #[arg(long, conflicts_with_all = ["prefix", "undo"], value_parser = clap::value_parser!(u32).range(1..))]
    pages: Option<u32>,
    /// Seconds after which the pin ends by itself, unless it is pinned again.
    #[arg(long, default_value_t = 3_600, conflicts_with = "undo", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    for_s: u64,
    /// Have another member of the cluster pull the pages and pin them for as long, too.
    #[arg(long, conflicts_with = "undo")]
    second_copy: bool,
    /// End this pin, by the name that it was given: 64 hexadecimal digits.
    #[arg(long, value_name = "PIN")]
    undo: Option<String>,
    /// The namespace, 64 hexadecimal digits; needed where it cannot be told from the sessions that are open.
    #[arg(long)]
    namespace: Option<String>,
    /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
    #[arg(long, env = "TURNKV_ADDRESS")]
    address: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(crate) async fn run(asked: &PinArguments) -> anyhow::Result<()> {
    // Who asks for a second copy may wait longer than commands usually do.
    let channel = connect_patiently(&address_or_default(asked.address.as_deref())).await?;
    let namespace = match &asked.namespace {
        Some(text) => id(text, "namespace")?.to_vec(),
        None => namespace_of(channel.clone(), asked.session.as_deref()).await?,
    };
    let mut sessions = SessionsClient::new(channel);
    if let Some(pin) = &asked.undo {
        let request =
            wire::UnpinRequest { namespace: namespace.into(), pin: id(pin, "pin")?.to_vec().into() };
        let found =
            sessions.unpin(request).await.context("the server does not end the pin")?.into_inner().found;
        let text = if found { "the pin is ended" } else { "there was no such pin" };
        return print_as(asked.json, &json!({"ended": found}), text);
    }
    let request = wire::PinRequest {
        namespace: namespace.into(),
        hashes: asked.prefix.as_deref().map(hashes).transpose()?.unwrap_or_default().into(),
        session: asked.session.clone().unwrap_or_default(),
        pages: asked.pages.unwrap_or_default(),
        ttl_ms: asked.for_s.saturating_mul(1_000),
        copies: if asked.second_copy { 2 } else { 1 },
    };
    let pinned = sessions.pin(request).await.context("the server pins nothing")?.into_inner();
    said(asked, &pinned)
}

/// Says what is pinned. A pin that protects nothing is an error: a script is to notice.
fn said(asked: &PinArguments, pinned: &wire::PinReply) -> anyhow::Result<()> {
    let name = hex(&pinned.pin);
    let value = json!({
        "pages": pinned.pages, "pin": name, "ends_in_ms": pinned.ends_in_ms,
        "second_at": pinned.second_at, "no_second": pinned.no_second,
    });
    let (pages, seconds) = (pinned.pages, pinned.ends_in_ms / 1_000);
    if pages == 0 {
        return Err(misused(
            "nothing is pinned: none of its pages are here, or the tenant protects as much as it may already",
            format!(
                "see `turnkv status`, limits.protected_percent, and that a tenant has {PROTECTIONS_PER_TENANT_MAX} pins and sessions with a priority at most"
            ),
        ));
    }
    let mut text = format!(
        "{pages} pages are pinned for {seconds} s; `turnkv pin --undo {name}` ends it\nsecond copy: "
    );
    text += match (&*pinned.second_at, &*pinned.no_second) {
        ("", "") if asked.second_copy => "none, the server is of a version that makes none",
        ("", "") => "not asked for (--second-copy)",
        ("", why) => why,
        (member, _) => member,
    };
    print_as(asked.json, &value, &text)
}
