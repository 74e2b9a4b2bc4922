//! `turnkv drain`: a running server takes nothing more and writes what it has, or has other members take its sessions over; `--undo` takes
//! that back. Owns: the text. Must not know: what the server does for it.

use super::connect::{address_or_default, connect};
use super::status::human_bytes;
use anyhow::{Context, ensure};
use clap::Args;
use std::time::Duration;
use tonic::transport::Channel;
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::cluster_client::ClusterClient;
use turnkv_proto::wire::{DrainRequest, MoveAwayReply, MoveAwayRequest, ResumeRequest};

/// How often a server is asked how far it is.
const LOOK: Duration = Duration::from_millis(500);

/// What is asked for.
#[derive(Args)]
pub(crate) struct DrainArguments {
    /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
    #[arg(long, env = "TURNKV_ADDRESS")]
    address: Option<String>,
    /// Take a drain back: pages are taken again.
    #[arg(long, conflicts_with_all = ["to_peers", "json", "bytes_per_s"])]
    undo: bool,
    /// Have the other members of its cluster take its sessions over, too, those that are worth most first; asked again, that goes on.
    #[arg(long)]
    to_peers: bool,
    /// Bytes of pages that may leave in a second; 0: 1 GiB.
    #[arg(long, default_value_t = 0, requires = "to_peers")]
    bytes_per_s: u64,
    /// Print JSON, one object each time it is further.
    #[arg(long, requires = "to_peers")]
    json: bool,
}

/// Does it.
pub(crate) async fn run(asked: &DrainArguments) -> anyhow::Result<()> {
    let channel = connect(&address_or_default(asked.address.as_deref())).await?;
    if asked.to_peers {
        return to_peers(channel, asked).await;
    }
    let mut admin = AdminClient::new(channel);
    let text = if asked.undo {
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

/// Says how far it is until nothing more can be done.
async fn to_peers(channel: Channel, asked: &DrainArguments) -> anyhow::Result<()> {
    let mut cluster = ClusterClient::new(channel);
    let begin = MoveAwayRequest { only_look: false, bytes_per_s: asked.bytes_per_s };
    let mut standing =
        cluster.move_away(begin).await.context("the server does not move its sessions")?.into_inner();
    loop {
        super::print(&if asked.json { standing_json(&standing) } else { standing_text(&standing) })?;
        if !standing.running {
            break;
        }
        standing = further(&mut cluster, standing).await?;
    }
    let left = standing.left_sessions;
    ensure!(left == 0, "{left} sessions are still here; ask again when there is room, or a member, for them");
    Ok(())
}

/// Waits until it is further.
async fn further(
    cluster: &mut ClusterClient<Channel>,
    before: MoveAwayReply,
) -> anyhow::Result<MoveAwayReply> {
    loop {
        tokio::time::sleep(LOOK).await;
        let look = MoveAwayRequest { only_look: true, bytes_per_s: 0 };
        let now =
            cluster.move_away(look).await.context("the server does not say how far it is")?.into_inner();
        if now != before {
            return Ok(now);
        }
    }
}

fn standing_text(standing: &MoveAwayReply) -> String {
    let MoveAwayReply { running, moved_sessions, moved_bytes, left_sessions, no_room, no_peer, failed, note } =
        standing;
    let mut text = format!(
        "{}: {moved_sessions} sessions ({}) are with other members, {left_sessions} are here",
        if *running { "moving" } else { "done" },
        human_bytes(*moved_bytes)
    );
    for (count, why) in [
        (no_room, "that nobody has room for"),
        (no_peer, "that there is no member for"),
        (failed, "that were not taken"),
    ] {
        if *count > 0 {
            text += &format!(", {count} {why}");
        }
    }
    if !note.is_empty() {
        text += &format!(" ({note})");
    }
    text + "\n"
}

fn standing_json(standing: &MoveAwayReply) -> String {
    let json = serde_json::json!({
        "running": standing.running, "moved_sessions": standing.moved_sessions, "moved_bytes": standing.moved_bytes,
        "left_sessions": standing.left_sessions, "no_room": standing.no_room, "no_peer": standing.no_peer,
        "failed": standing.failed, "note": standing.note,
    });
    json.to_string() + "\n"
}
