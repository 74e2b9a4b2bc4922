//! `turnkv snapshot restore`. Owns: the text. Must not know: the server's inside.

use super::arguments::RestoreArguments;
use super::bar::Bar;
use super::text::as_json;
use crate::cmd::named::{hex, id};
use crate::cmd::print_as;
use crate::report::misused;
use anyhow::Context;
use turnkv_proto::wire;

/// Restores, and says what came back.
pub(super) async fn run(arguments: &RestoreArguments) -> anyhow::Result<()> {
    let namespace = match &arguments.namespace {
        Some(text) => id(text, "namespace")?.to_vec(),
        None => Vec::new(),
    };
    let request = wire::RestoreSnapshotRequest {
        tenant: arguments.of.at.tenant.clone(),
        snapshot: arguments.of.snapshot.clone(),
        namespace: namespace.into(),
        sequence: arguments.sequence.clone().unwrap_or_default(),
        session: arguments.session.clone().unwrap_or_default(),
        pages_only: arguments.pages_only,
    };
    let bar = Bar::new("restoring")?;
    let mut client = arguments.of.at.client().await?;
    let mut answers = client.restore(request).await.context("nothing was restored")?.into_inner();
    while let Some(answer) = answers.message().await.context("the snapshot is not restored")? {
        if let Some(progress) = answer.progress {
            bar.show(progress.pages_done, progress.pages);
        }
        if let Some(snapshot) = &answer.snapshot {
            drop(bar);
            let mut value = as_json(snapshot);
            value["stored_pages"] = answer.stored_pages.into();
            value["present_pages"] = answer.present_pages.into();
            value["restored_sessions"] = answer.sessions.clone().into();
            let sessions = match answer.sessions.as_slice() {
                [] => "no session".to_owned(),
                [one] => format!("session {one}"),
                all => format!("{} sessions", all.len()),
            };
            let text = format!(
                "{} pages stored, {} were there; {sessions} in namespace {}",
                answer.stored_pages,
                answer.present_pages,
                hex(&snapshot.namespace)
            );
            return print_as(arguments.of.at.json, &value, &text);
        }
    }
    Err(misused("the server ended the call without an answer", "see its log, then try again"))
}
