//! Kinds of errors, each with what to do. Must not know: who raises them.

use anyhow::{Context, Result, ensure};
use tonic::Status;
use turnkv_proto::{Error, ErrorKind};
use turnkv_tests::workspace::root;

const PYTHON: &str = "engine-plugins/src/error.rs";

/// A row for each kind of the wire.
pub(crate) fn of_the_wire() -> String {
    let kinds = [
        ErrorKind::Invalid,
        ErrorKind::NamespaceUnknown,
        ErrorKind::LeaseUnknown,
        ErrorKind::Busy { retry_after_ms: 1 },
        ErrorKind::Draining,
        ErrorKind::SessionUnknown,
        ErrorKind::Limit,
        ErrorKind::Internal,
        ErrorKind::PermissionDenied,
        ErrorKind::Unavailable,
    ];
    let mut table = "| kind | gRPC status | what to do |\n|---|---|---|\n".to_owned();
    for kind in kinds {
        let code = Status::from(Error::new(kind, "")).code();
        table += &format!("| `{}` | {code:?} | {} |\n", kind.reason(), kind.advice());
    }
    table
}

/// A row for each kind of `turnkv.Error`, from the source of the binding, which no other crate can use.
pub(crate) fn of_python() -> Result<String> {
    let text = std::fs::read_to_string(root().join(PYTHON))?;
    let arms = |function: &str| -> Result<Vec<(String, String)>> {
        let begin = format!("fn {function}(kind: ErrorKind)");
        let (_, rest) = text.split_once(&begin).with_context(|| format!("{PYTHON} has no {begin}"))?;
        let (body, _) = rest.split_once("\n}").context("it ends")?;
        let arm = |line: &str| {
            let (kind, said) = line.trim().strip_prefix("ErrorKind::")?.split_once(" => \"")?;
            let kind = kind.split_whitespace().next()?.to_owned();
            Some((kind, said.trim_end_matches("\",").to_owned()))
        };
        Ok(body.lines().filter_map(arm).collect())
    };
    let (names, advice) = (arms("name")?, arms("advice")?);
    ensure!(
        names.len() > 8 && names.len() == advice.len(),
        "{} names, {} advices",
        names.len(),
        advice.len()
    );
    let mut table = "| `kind` | `advice` |\n|---|---|\n".to_owned();
    for ((kind, name), (of, advice)) in names.iter().zip(&advice) {
        ensure!(kind == of, "{kind} and {of} are in another order");
        table += &format!("| `{name}` | {advice} |\n");
    }
    Ok(table)
}
