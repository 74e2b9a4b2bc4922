//! `turnkv snapshot create`. Owns: what is captured, and reading token ids. Must not know: the server's
//! inside.

use super::arguments::{CreateArguments, client_on};
use super::bar::Bar;
use super::text::{as_json, line};
use crate::cmd::named::{hashes, id, namespace_of, read};
use crate::cmd::print_as;
use crate::cmd::status::human_bytes;
use crate::report::misused;
use anyhow::Context;
use std::path::Path;
use turnkv_proto::wire;
use wire::create_snapshot_request::What;

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
    print_as(arguments.at.json, &value, &text)
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
