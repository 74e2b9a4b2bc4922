//! The file descriptors of a tier. Owns: how many one needs, and the limit that must allow them. Must not know: what is in
//! the files.
//!
//! A directory's segments are opened at start, those without space yet as well: once the tier is open it needs no further
//! descriptor, so nothing that happens to the rest of the process's descriptors can reach it.

use super::config::OpenError;
use crate::limits::{SPARE_FDS, TIER_FDS};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a tier over so many segment files holds while it is open.
pub(crate) fn needed(files: u32) -> u64 {
    u64::from(files) + TIER_FDS
}

/// Makes room for one descriptor a segment: takes what the hard limit allows, and says what to do when it is too little.
pub(crate) fn raise_limit(files: u32, warnings: &mut Vec<String>) -> Result<(), OpenError> {
    let needed = needed(files) + SPARE_FDS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(OpenError::Config(format!(
            "{files} segments need {needed} open files and the limit is {}: raise it (LimitNOFILE= in the systemd \
             unit, ulimit -n) or raise segment_bytes",
            limit.maximum.unwrap_or(0)
        )));
    }
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })
    {
        warnings.push(format!("the limit of open files could not be raised to {needed}: {errno}"));
    }
    Ok(())
}
