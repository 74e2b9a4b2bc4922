//! `turnkv snapshot verify`. Owns: the text; what is wrong makes it fail. Must not know: the server's inside.

use super::arguments::VerifyArguments;
use super::bar::Bar;
use crate::cmd::print_as;
use crate::report::misused;
use anyhow::Context;
use serde_json::json;
use turnkv_proto::wire;

/// Verifies, and says what is wrong.
pub(super) async fn run(arguments: &VerifyArguments) -> anyhow::Result<()> {
    let request = wire::VerifySnapshotsRequest {
        tenant: arguments.at.tenant.clone(),
        snapshot: arguments.snapshot.clone().unwrap_or_default(),
    };
    let bar = Bar::without_end("verifying")?;
    let answers = arguments.at.client().await?.verify(request).await.context("nothing was verified")?;
    let mut answers = answers.into_inner();
    while let Some(answer) = answers.message().await.context("not all was verified")? {
        if answer.finished {
            drop(bar);
            return said(arguments, &answer);
        }
        bar.show(answer.pages_done, answer.pages_done);
    }
    Err(misused("the server ended the call without an answer", "see its log, then try again"))
}

fn said(arguments: &VerifyArguments, answer: &wire::VerifySnapshotsReply) -> anyhow::Result<()> {
    let (snapshots, pages, found) = (answer.snapshots_done, answer.pages_done, answer.faults_found);
    let fault = |fault: &wire::SnapshotFault| {
        let page = fault.in_page.then_some(fault.page);
        json!({"snapshot": fault.snapshot, "page": page, "fault": fault.fault})
    };
    let faults: Vec<_> = answer.faults.iter().map(fault).collect();
    let value = json!({"snapshots": snapshots, "pages": pages, "faults_found": found, "faults": faults});
    let mut text = format!("{snapshots} snapshots, {pages} pages read, {found} faults\n");
    for fault in &answer.faults {
        text += &format!("{}: {}\n", fault.snapshot, fault.fault);
    }
    print_as(arguments.at.json, &value, &text)?;
    if found == 0 {
        return Ok(());
    }
    let todo =
        "put the named objects back from elsewhere, or delete these snapshots (turnkv snapshot delete)";
    Err(misused(format!("{found} faults in the archive"), todo))
}
