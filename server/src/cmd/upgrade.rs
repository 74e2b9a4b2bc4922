//! `turnkv upgrade`: another program takes the place of a running server. Owns: the text, and how long it waits for the new one.
//! Must not know: what the server does for it.

use super::connect::{address_or_default, connect_within};
use crate::limits::{UPGRADE_ANSWER_MAX, UPGRADE_ASK, UPGRADE_WAIT_S_MAX};
use crate::report::{self, misused};
use clap::Args;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tonic::Status;
use turnkv_proto::ErrorKind;
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{UpgradeReply, UpgradeRequest};

/// Which program, and how long to wait for it.
#[derive(Args)]
pub(crate) struct UpgradeArguments {
    /// The program, by its absolute path on the server's host; without it the one where the running one came from, which was
    /// replaced meanwhile.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
    #[arg(long, env = "TURNKV_ADDRESS")]
    address: Option<String>,
    /// Seconds to wait until the new program serves.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=UPGRADE_WAIT_S_MAX))]
    wait_s: u64,
}

/// Asks for it, and waits until the new program serves, or the old one again.
pub(crate) async fn run(arguments: &UpgradeArguments) -> anyhow::Result<()> {
    let address = address_or_default(arguments.address.as_deref());
    let binary = match arguments.binary.as_deref() {
        None => String::new(),
        Some(path) => path.to_str().map(str::to_owned).ok_or_else(|| {
            misused(format!("{} is no text", path.display()), "name the program by a path that is text")
        })?,
    };
    let began = Instant::now();
    let until = began + Duration::from_secs(arguments.wait_s);
    let asked = ask(&address, UpgradeRequest { binary, look: false }, until).await.map_err(refused)?;
    if !asked.note.is_empty() {
        super::print(&format!("{}\n", asked.note))?;
    }
    let mut last = anyhow::anyhow!("nobody was asked");
    let now = loop {
        tokio::time::sleep(UPGRADE_ASK.min(until.saturating_duration_since(Instant::now()))).await;
        if Instant::now() >= until {
            return Err(not_yet(arguments.wait_s, &last));
        }
        match ask(&address, UpgradeRequest { binary: String::new(), look: true }, until).await {
            Ok(now) if now.instance != asked.instance => break now,
            Ok(_) => last = anyhow::anyhow!("the old program still serves"),
            Err(error) => last = error,
        }
    };
    if !now.failed.is_empty() {
        let what = format!("the new program did not come up, {} serves on: {}", now.version, now.failed);
        return Err(misused(what, "see the server's log, and mend what it says"));
    }
    let (from, to, took) = (asked.version, now.version, began.elapsed().as_millis());
    super::print(&format!("upgraded from {from} to {to} in {took} ms\n"))?;
    Ok(())
}

/// Asks on a connection of its own: the one before may be of the program that leaves.
async fn ask(address: &str, request: UpgradeRequest, until: Instant) -> anyhow::Result<UpgradeReply> {
    let answer_max = UPGRADE_ANSWER_MAX.min(until.saturating_duration_since(Instant::now()));
    let asked = async {
        let mut admin = AdminClient::new(connect_within(address, Some(answer_max)).await?);
        Ok(admin.upgrade(request).await?.into_inner())
    };
    tokio::time::timeout(answer_max, asked).await.unwrap_or_else(|_| {
        Err(misused("the server does not answer", "see whether it still runs, and what its log says"))
    })
}

/// What the server said it lacks is in its words; a connection that was lost speaks for itself.
fn refused(error: anyhow::Error) -> anyhow::Error {
    let said = error.downcast_ref::<Status>().and_then(turnkv_proto::Error::from_status);
    match said {
        Some(said) if said.kind == ErrorKind::Invalid => {
            let what = format!("no upgrade: {}", said.message);
            misused(what, "nothing has changed: mend that, and upgrade again")
        }
        _ => error.context("no upgrade"),
    }
}

fn not_yet(wait_s: u64, why: &anyhow::Error) -> anyhow::Error {
    let (why, _) = report::lines(why);
    let what = format!("no other program serves within {wait_s} s: {why}");
    misused(what, "see the server's log; a server that is gone is started as ever, and finds what is kept")
}
