//! The steps of the Makefile: what `make` makes of each is a script that a shell can read. A comma in a name that
//! is handed to `call`, for one, ends the argument there, and a quotation mark is left open.
//! Must not know: what a step does.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `.PHONY` declares: the targets that people and CI name.
pub(crate) fn targets(makefile: &str) -> Vec<&str> {
    makefile.lines().filter_map(|line| line.strip_prefix(".PHONY:")).flat_map(str::split_whitespace).collect()
}

/// Why `make TARGET` in `folder` cannot run to its end, found without running it.
pub(crate) fn fault(folder: &Path, target: &str) -> Option<String> {
    let planned = Command::new("make")
        .args(["--dry-run", "--always-make", target])
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .current_dir(folder)
        .output();
    let said = match planned {
        Ok(planned) if planned.status.success() => unread(&planned.stdout).err()?,
        Ok(planned) => String::from_utf8_lossy(&planned.stderr).into_owned(),
        Err(why) => why.to_string(),
    };
    Some(format!("make {target}: {}", said.trim()))
}

/// What bash says of a script that it cannot parse.
fn unread(script: &[u8]) -> Result<(), String> {
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| why.to_string())?;
    let mut stdin = bash.stdin.take().ok_or("no standard input")?;
    // A shell that stopped at a fault reads no further: its verdict says more than the broken pipe does.
    stdin.write_all(script).ok();
    drop(stdin);
    let output = bash.wait_with_output().map_err(|why| why.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_what_is_declared() {
        assert_eq!(targets("a: b\n.PHONY: test demo\n\trun\n.PHONY: docs"), ["test", "demo", "docs"]);
    }

    #[test]
    fn a_comma_that_ends_an_argument_is_found() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let rules = "say = echo $(1)\ngood:\n\t@$(call say,'a (b, c)')\nbad:\n\t@$(call say,'a, b')\n";
        std::fs::write(folder.path().join("Makefile"), rules)?;
        assert_eq!(fault(folder.path(), "good"), None);
        assert!(fault(folder.path(), "bad").is_some_and(|why| why.contains("make bad:")));
        assert!(fault(folder.path(), "missing").is_some_and(|why| why.contains("missing")));
        Ok(())
    }
}
