//! `turnkv cluster`: who is in a running server's cluster, and how it stands. Owns: the text. Must not know: the server's inside (it
//! asks the Cluster service like anybody).

use super::connect::{address_or_default, connect};
use super::status::human_time;
use anyhow::Context;
use clap::Subcommand;
use std::fmt::Write as _;
use turnkv_proto::wire::cluster_client::ClusterClient;
use turnkv_proto::wire::{
    ForgetRequest, Member, MemberState, MembersReply, PeerStanding, StandingReply, StandingRequest,
    WatchMembersRequest,
};

/// What to do.
#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Print how a server's part in its cluster stands: members, what it knows of sessions, how others answer it.
    Status {
        /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
        #[arg(long, env = "TURNKV_ADDRESS")]
        address: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the members as a server sees them.
    Members {
        /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
        #[arg(long, env = "TURNKV_ADDRESS")]
        address: Option<String>,
        /// Print JSON, one object a view.
        #[arg(long)]
        json: bool,
        /// Go on: print them each time they differ.
        #[arg(long)]
        watch: bool,
    },
    /// Remove what etcd has of a member that is gone for good; one that lives is there again at once.
    Forget {
        /// The member's name (cluster.id).
        name: String,
        /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
        #[arg(long, env = "TURNKV_ADDRESS")]
        address: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub(crate) async fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Status { address, json } => status(address.as_deref(), *json).await,
        ClusterCommand::Members { address, json, watch } => members(address.as_deref(), *json, *watch).await,
        ClusterCommand::Forget { name, address, json } => forget(name, address.as_deref(), *json).await,
    }
}

async fn status(address: Option<&str>, json: bool) -> anyhow::Result<()> {
    let mut cluster = ClusterClient::new(connect(&address_or_default(address)).await?);
    let standing =
        cluster.standing(StandingRequest {}).await.context("the cluster's standing is not known")?;
    let standing = standing.into_inner();
    super::print(&if json { standing_json(&standing)? } else { standing_text(&standing) })?;
    Ok(())
}

async fn members(address: Option<&str>, json: bool, watch: bool) -> anyhow::Result<()> {
    let address = address_or_default(address);
    let channel =
        if watch { super::connect::connect_patiently(&address).await? } else { connect(&address).await? };
    let mut cluster = ClusterClient::new(channel);
    let views = cluster.watch_members(WatchMembersRequest {}).await.context("the members are not known")?;
    let mut views = views.into_inner();
    while let Some(view) = views.message().await.context("the members are not known any more")? {
        super::print(&if json { view_json(&view).to_string() + "\n" } else { view_text(&view) })?;
        if !watch {
            break;
        }
    }
    Ok(())
}

async fn forget(name: &str, address: Option<&str>, json: bool) -> anyhow::Result<()> {
    let mut cluster = ClusterClient::new(connect(&address_or_default(address)).await?);
    let asked = ForgetRequest { name: name.to_owned() };
    let known = cluster.forget(asked).await.context("the member is not forgotten")?.into_inner().known;
    super::print(&match (json, known) {
        (true, _) => serde_json::json!({ "name": name, "known": known }).to_string() + "\n",
        (false, true) => format!("{name} is forgotten; if it lives, it is there again at once\n"),
        (false, false) => format!("etcd has nothing of {name}\n"),
    })?;
    Ok(())
}

fn standing_text(standing: &StandingReply) -> String {
    let view = standing.view.clone().unwrap_or_default();
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{line}").unwrap_or_default();
    let reached = if standing.reached { "" } else { ", which cannot be read now: the last view stays" };
    line(format!(
        "cluster  {} as {} sees it; members from {}{reached}",
        standing.cluster, view.own, standing.membership
    ));
    line(format!("view     {} members, epoch {:016x}", view.members.len(), view.epoch));
    line(format!(
        "tells    {} sessions at home here; knows {} sessions and {} signposts of others; {} questions wait",
        standing.homes, standing.tips, standing.posts, standing.calls
    ));
    for member in &view.members {
        let peer = standing.peers.iter().find(|peer| peer.name == member.name);
        line(format!("{}{}", member_line(member), peer.map(answers).unwrap_or_default()));
    }
    let out = |peer: &&PeerStanding| view.members.iter().all(|member| member.name != peer.name);
    for peer in standing.peers.iter().filter(out) {
        line(format!("out      {:<20} {}{}", peer.name, peer.endpoint, answers(peer)));
    }
    for note in &standing.notes {
        line(format!("note     {note}"));
    }
    text
}

fn answers(peer: &PeerStanding) -> String {
    let mut text = match (peer.answers, peer.silent_ms) {
        (true, _) => String::new(),
        (false, u64::MAX) => ", SILENT".to_owned(),
        (false, silent) => format!(", SILENT for {}", human_time(silent)),
    };
    if !peer.answers && !peer.note.is_empty() {
        text += &format!(" ({})", peer.note);
    }
    if peer.dropped > 0 {
        text += &format!(", {} messages dropped", peer.dropped);
    }
    text
}

fn view_text(view: &MembersReply) -> String {
    let mut text = format!("{} members, epoch {:016x}\n", view.members.len(), view.epoch);
    for member in &view.members {
        text += &format!("{}\n", member_line(member));
    }
    text
}

fn member_line(member: &Member) -> String {
    let zone = if member.zone.is_empty() { String::new() } else { format!(", zone {}", member.zone) };
    format!(
        "{:<8} {:<20} {}, weight {}{zone}, incarnation {}",
        state(member),
        member.name,
        member.endpoint,
        member.weight,
        member.incarnation
    )
}

fn state(member: &Member) -> &'static str {
    match member.state() {
        MemberState::Serving => "serving",
        MemberState::Away => "away",
        MemberState::Draining => "draining",
        MemberState::Unspecified => "unknown",
    }
}

fn view_json(view: &MembersReply) -> serde_json::Value {
    let member = |member: &Member| {
        serde_json::json!({
            "name": member.name, "endpoint": member.endpoint, "zone": member.zone, "weight": member.weight,
            "state": state(member), "incarnation": member.incarnation,
        })
    };
    let members: Vec<_> = view.members.iter().map(member).collect();
    serde_json::json!({ "own": view.own, "epoch": format!("{:016x}", view.epoch), "members": members })
}

fn standing_json(standing: &StandingReply) -> anyhow::Result<String> {
    let peer = |peer: &PeerStanding| {
        serde_json::json!({
            "name": peer.name, "endpoint": peer.endpoint, "answers": peer.answers,
            "silent_ms": Some(peer.silent_ms).filter(|ms| *ms < u64::MAX), "waiting": peer.waiting,
            "dropped": peer.dropped, "note": peer.note,
        })
    };
    let peers: Vec<_> = standing.peers.iter().map(peer).collect();
    let json = serde_json::json!({
        "cluster": standing.cluster, "membership": standing.membership, "reached": standing.reached,
        "view": view_json(&standing.view.clone().unwrap_or_default()), "homes": standing.homes, "tips": standing.tips,
        "posts": standing.posts, "calls": standing.calls, "peers": peers, "notes": standing.notes,
    });
    Ok(serde_json::to_string_pretty(&json)? + "\n")
}
