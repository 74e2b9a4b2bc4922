//! `turnkv snapshot list`, `show`, `fork`, `delete`, `collect`, `export`, `import`: one call each, or one a page of a list. Owns: the
//! text. Must not know: the server's inside.

use super::arguments::{
    AskedServer, CollectArguments, ExportArguments, ForkArguments, ImportArguments, OneSnapshot,
    ShowArguments,
};
use super::text::{as_json, line};
use crate::cmd::named::hex;
use crate::cmd::print_as;
use crate::cmd::status::human_bytes;
use crate::report::misused;
use anyhow::Context;
use serde_json::json;
use turnkv_proto::wire;

/// Prints all of a tenant's snapshots.
pub(super) async fn list(at: &AskedServer) -> anyhow::Result<()> {
    let mut client = at.client().await?;
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let request = wire::ListSnapshotsRequest { tenant: at.tenant.clone(), after, limit: 0 };
        let some = client.list(request).await.context("the snapshots cannot be listed")?.into_inner();
        after = some.snapshots.last().map_or_else(String::new, |last| last.snapshot.clone());
        all.extend(some.snapshots);
        if !some.more || after.is_empty() {
            break;
        }
    }
    let one = |listed: &wire::ListedSnapshot| match &listed.summary {
        Some(summary) => {
            let mut value = as_json(summary);
            value["manifest_bytes"] = listed.manifest_bytes.into();
            value
        }
        None => json!({"snapshot": listed.snapshot, "fault": listed.fault}),
    };
    let value = json!({"snapshots": all.iter().map(one).collect::<Vec<_>>()});
    let mut text = String::new();
    for listed in &all {
        text += &match &listed.summary {
            Some(summary) => format!("{}\n", line(summary)),
            None => format!("{}  cannot be read: {}\n", listed.snapshot, listed.fault),
        };
    }
    if all.is_empty() {
        text = "no snapshots\n".to_owned();
    }
    print_as(at.json, &value, &text)
}

/// Prints what a snapshot has.
pub(super) async fn show(arguments: &ShowArguments) -> anyhow::Result<()> {
    let mut client = arguments.of.at.client().await?;
    let mut request = wire::DescribeSnapshotRequest {
        tenant: arguments.of.at.tenant.clone(),
        snapshot: arguments.of.snapshot.clone(),
        sequence: arguments.sequence.clone().unwrap_or_default(),
        from_page: 0,
    };
    let ask = |error| anyhow::Error::from(error).context("the snapshot cannot be shown");
    let mut described = client.describe(request.clone()).await.map_err(ask)?.into_inner();
    let (mut hashes, mut tokens) = (described.hashes.to_vec(), std::mem::take(&mut described.tokens));
    while described.next_page > request.from_page {
        request.from_page = described.next_page;
        described = client.describe(request.clone()).await.map_err(ask)?.into_inner();
        hashes.extend_from_slice(&described.hashes);
        tokens.append(&mut described.tokens);
    }
    let summary = described.snapshot.unwrap_or_default();
    let sequence = |one: &wire::SnapshotSequence| json!({"sequence": one.sequence, "pages": one.pages, "tokens": one.tokens, "last_page_tokens": one.last_page_tokens, "has_tokens": one.has_tokens});
    let hashes: Vec<String> = hashes.chunks(32).map(hex).collect();
    let mut value = as_json(&summary);
    value["layout"] = described.layout.clone().into();
    value["dtype"] = described.dtype.clone().into();
    value["unique_bytes"] = described.unique_bytes.into();
    value["all_sequences"] = described.sequences.iter().map(sequence).collect();
    let mut text = format!(
        "{}\nnamespace {}\npages of {} tokens, {} shards of {}, {} {}; {} without repetitions\n",
        line(&summary),
        hex(&summary.namespace),
        summary.page_tokens,
        summary.shards,
        human_bytes(summary.shard_bytes),
        described.layout,
        described.dtype,
        human_bytes(described.unique_bytes),
    );
    for one in &described.sequences {
        let ids = if one.has_tokens { "with token ids" } else { "without token ids" };
        text += &format!("sequence  {}  {} pages, {} tokens, {ids}\n", one.sequence, one.pages, one.tokens);
    }
    if arguments.sequence.is_some() {
        value["hashes"] = hashes.clone().into();
        value["tokens"] = tokens.clone().into();
        text += &hashes.iter().map(|hash| format!("page      {hash}\n")).collect::<String>();
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        if !ids.is_empty() {
            text += &format!("tokens    {}\n", ids.join(" "));
        }
    }
    print_as(arguments.of.at.json, &value, &text)
}

/// Forks, and says what the fork is.
pub(super) async fn fork(arguments: &ForkArguments) -> anyhow::Result<()> {
    let request = wire::ForkSnapshotRequest {
        tenant: arguments.of.at.tenant.clone(),
        snapshot: arguments.of.snapshot.clone(),
        sequence: arguments.sequence.clone().unwrap_or_default(),
        pages: arguments.pages.unwrap_or(0),
        name: arguments.name.clone().unwrap_or_default(),
    };
    let mut client = arguments.of.at.client().await?;
    let fork = client.fork(request).await.context("nothing was forked")?.into_inner();
    let summary = fork.snapshot.unwrap_or_default();
    print_as(arguments.of.at.json, &as_json(&summary), &line(&summary))
}

/// Deletes one.
pub(super) async fn delete(of: &OneSnapshot) -> anyhow::Result<()> {
    let request = wire::DeleteSnapshotRequest { tenant: of.at.tenant.clone(), snapshot: of.snapshot.clone() };
    of.at.client().await?.delete(request).await.context("nothing was deleted")?;
    let text = format!("{} is deleted; `turnkv snapshot collect` frees what it alone needed", of.snapshot);
    print_as(of.at.json, &json!({"deleted": of.snapshot}), &text)
}

/// Collects, and says what went.
pub(super) async fn collect(arguments: &CollectArguments) -> anyhow::Result<()> {
    if arguments.stored_max.is_some_and(|bytes| bytes.0 == 0) {
        return Err(misused(
            "--stored-max is 0, and no snapshot needs so little",
            "name more, or leave it out to delete none by size",
        ));
    }
    let request = wire::CollectSnapshotsRequest {
        tenant: arguments.at.tenant.clone(),
        older_than_s: arguments.older_than_days.unwrap_or(0) * 86_400,
        stored_bytes_max: arguments.stored_max.map_or(0, |bytes| bytes.0),
    };
    let did = arguments.at.client().await?.collect(request).await.context("the collection did not end")?;
    let did = did.into_inner();
    let value = json!({
        "snapshots": did.snapshots,
        "snapshots_deleted": did.snapshots_deleted,
        "packs_condemned": did.packs_condemned,
        "packs_deleted": did.packs_deleted,
        "bytes_deleted": did.bytes_deleted,
        "bytes_moved": did.bytes_moved,
        "bytes_needed": did.bytes_needed,
        "blobs_missing": did.blobs_missing,
        "packs_damaged": did.packs_damaged,
        "grace_ms": did.grace_ms,
    });
    let mut text = format!(
        "{} snapshots stay, {} deleted; they need {}; {} freed in {} packs, {} more packs go after {} s and another collection\n",
        did.snapshots,
        did.snapshots_deleted,
        human_bytes(did.bytes_needed),
        human_bytes(did.bytes_deleted),
        did.packs_deleted,
        did.packs_condemned,
        did.grace_ms / 1000,
    );
    if did.blobs_missing > 0 || !did.packs_damaged.is_empty() {
        text += &format!(
            "{} parts of pages are missing, {} packs are damaged: `turnkv snapshot verify` says of which snapshots\n",
            did.blobs_missing,
            did.packs_damaged.len()
        );
    }
    print_as(arguments.at.json, &value, &text)
}

/// Exports, and says where to.
pub(super) async fn export(arguments: &ExportArguments) -> anyhow::Result<()> {
    let request = wire::ExportSnapshotRequest {
        tenant: arguments.of.at.tenant.clone(),
        snapshot: arguments.of.snapshot.clone(),
        directory: arguments.directory.clone().unwrap_or_default(),
        level: arguments.level,
    };
    let mut client = arguments.of.at.client().await?;
    let done = client.export(request).await.context("the export is not complete")?.into_inner();
    let text = format!("{} blobs, {} in {}", done.blobs, human_bytes(done.bytes), done.directory);
    let value = json!({"directory": done.directory, "blobs": done.blobs, "bytes": done.bytes});
    print_as(arguments.of.at.json, &value, &text)
}

/// Imports, and says what the snapshot is.
pub(super) async fn import(arguments: &ImportArguments) -> anyhow::Result<()> {
    if arguments.directory.is_empty() {
        return Err(misused("no directory is named", "name one within archive.exports of the server's host"));
    }
    let request = wire::ImportSnapshotRequest {
        tenant: arguments.at.tenant.clone(),
        directory: arguments.directory.clone(),
    };
    let done =
        arguments.at.client().await?.import(request).await.context("nothing was imported")?.into_inner();
    let summary = done.snapshot.unwrap_or_default();
    let mut value = as_json(&summary);
    value["stored_bytes"] = done.stored_bytes.into();
    let text = format!("{}\n{} written", line(&summary), human_bytes(done.stored_bytes));
    print_as(arguments.at.json, &value, &text)
}
