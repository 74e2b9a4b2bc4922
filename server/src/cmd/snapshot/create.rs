//! `turnkv snapshot create`. Owns: finding the namespace that is meant, reading hashes and token ids. Must not know: the server's
//! inside.

use super::arguments::{CreateArguments, client_on};
use super::bar::Bar;
use super::text::{as_json, id, line, print};
use crate::cmd::status::human_bytes;
use crate::report::{Advise, misused};
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::Path;
use tonic::transport::Channel;
use turnkv_proto::limits::GRPC_ANSWER_BYTES_MAX;
use turnkv_proto::wire;
use wire::create_snapshot_request::What;
use wire::sessions_client::SessionsClient;

/// Captures, and says what was captured.
pub(super) async fn run(arguments: &CreateArguments) -> anyhow::Result<()> {
    let channel = arguments.at.channel().await?;
    let what = match (&arguments.session, &arguments.prefix) {
        (Some(session), _) => What::Session(session.clone()),
        (None, Some(path)) => {
            What::Prefix(wire::SnapshotPrefix { hashes: hashes(path)?.into(), name: arguments.name.clone() })
        }
        (None, None) => What::Everything(true),
    };
    let sequence = arguments.session.as_ref().unwrap_or(&arguments.name);
    let tokens = match &arguments.tokens {
        None => Vec::new(),
        Some(_) if arguments.everything => {
            let todo = "leave --tokens out, or capture one session (--session)";
            return Err(misused("--tokens is for one sequence, and --everything has several", todo));
        }
        Some(path) => vec![wire::SequenceTokens { sequence: sequence.clone(), tokens: ids(path)? }],
    };
    let namespace = match &arguments.namespace {
        Some(text) => id(text, "namespace")?.to_vec(),
        None => namespace_of(channel.clone(), arguments.session.as_deref()).await?,
    };
    let request = wire::CreateSnapshotRequest { namespace: namespace.into(), what: Some(what), tokens };
    let bar = Bar::new("capturing")?;
    let answers = client_on(channel).create(request).await.context("no snapshot was made")?;
    let mut answers = answers.into_inner();
    while let Some(answer) = answers.message().await.context("no snapshot was made")? {
        if let Some(progress) = answer.progress {
            bar.show(progress.pages_done, progress.pages);
        }
        if let Some(snapshot) = &answer.snapshot {
            drop(bar);
            return said(arguments, snapshot, &answer);
        }
    }
    Err(misused("the server ended the call without an answer", "see its log, then try again"))
}

fn said(
    arguments: &CreateArguments,
    snapshot: &wire::SnapshotSummary,
    answer: &wire::CreateSnapshotReply,
) -> anyhow::Result<()> {
    let mut value = as_json(snapshot);
    value["missing_pages"] = answer.missing_pages.into();
    value["stored_bytes"] = answer.stored_bytes.into();
    value["new_blobs"] = answer.new_blobs.into();
    value["reused_blobs"] = answer.reused_blobs.into();
    let mut text = format!("{}\n{} written", line(snapshot), human_bytes(answer.stored_bytes));
    if answer.reused_blobs > 0 {
        text += &format!(
            ", {} of {} parts were there",
            answer.reused_blobs,
            answer.reused_blobs + answer.new_blobs
        );
    }
    if answer.missing_pages > 0 {
        text += &format!("; {} pages were not in the pool and are not in the snapshot", answer.missing_pages);
    }
    print(arguments.at.json, &value, &text)
}

/// The namespace that a session is in, or the only one that has sessions.
async fn namespace_of(channel: Channel, session: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut sessions = SessionsClient::new(channel).max_decoding_message_size(GRPC_ANSWER_BYTES_MAX);
    let listed = sessions.list(wire::ListRequest::default()).await.context("the server lists no sessions")?;
    let found = listed.into_inner().sessions.into_iter();
    let found = found.filter(|info| session.is_none_or(|session| info.session == session));
    let namespaces: BTreeSet<Vec<u8>> = found.map(|info| info.namespace.to_vec()).collect();
    let mut namespaces = namespaces.into_iter();
    match (namespaces.next(), namespaces.len(), session) {
        (Some(namespace), 0, _) => Ok(namespace),
        (None, _, Some(session)) => Err(misused(
            format!("no session is called {session}"),
            "name one that is there, or its namespace (--namespace) where there are very many",
        )),
        (None, _, None) => Err(misused("no session tells which namespace is meant", "name it (--namespace)")),
        (Some(_), others, _) => Err(misused(
            format!("{} namespaces could be meant", others + 1),
            "name one of them (--namespace)",
        )),
    }
}

/// Packed hashes of a file with one a line.
fn hashes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let text = read(path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let hashes = lines.map(|line| id(line, "page hash")).collect::<anyhow::Result<Vec<_>>>()?;
    if hashes.is_empty() {
        return Err(misused(format!("{} names no page", path.display()), "write one hash a line"));
    }
    Ok(hashes.concat())
}

/// Token ids of a file.
fn ids(path: &Path) -> anyhow::Result<Vec<u32>> {
    let text = read(path)?;
    let number = |word: &str| {
        word.parse::<u32>().ok().ok_or_else(|| {
            misused(
                format!("{}: `{}` is no token id", path.display(), word.chars().take(32).collect::<String>()),
                "write whole numbers with spaces between them",
            )
        })
    };
    text.split_whitespace().map(number).collect()
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).advise(|| format!("cannot read {}", path.display()), "name a text file")
}
