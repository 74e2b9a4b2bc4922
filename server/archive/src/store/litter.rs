//! What killed processes left in a directory of files that were being written: their names end with `#` and a number, and no listing
//! shows them. Owns: removing them. Must not know: objects.

use crate::limits::FOLDER_DEPTH_MAX;
use crate::store::folder::is_unfinished;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Removes such files in a directory and its folders, down to those of sessions, if they were last written before a time; how many.
/// What cannot be looked at or removed stays for the next time.
pub(super) fn sweep(place: &Path, before_unix_ms: i64) -> u64 {
    sweep_below(place, FOLDER_DEPTH_MAX, before_unix_ms)
}

fn sweep_below(place: &Path, depth: usize, before_unix_ms: i64) -> u64 {
    let Ok(entries) = std::fs::read_dir(place) else { return 0 };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let below = |folder: PathBuf| match depth.checked_sub(1) {
        Some(depth) => sweep_below(&folder, depth, before_unix_ms),
        None => 0,
    };
    folders.map(|entry| below(entry.path())).sum::<u64>() + sweep_folder(place, before_unix_ms)
}

fn sweep_folder(folder: &Path, before_unix_ms: i64) -> u64 {
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    let mut swept = 0;
    for file in files.flatten() {
        let name = file.file_name();
        let is_litter = name.to_str().is_some_and(is_unfinished);
        let written = file.metadata().and_then(|about| about.modified()).ok();
        let age = written.and_then(|written| written.duration_since(UNIX_EPOCH).ok());
        let is_old = age.is_some_and(|since| (since.as_millis() as i64) < before_unix_ms);
        if is_litter && is_old {
            match std::fs::remove_file(file.path()) {
                Ok(()) => swept += 1,
                Err(fault) => {
                    tracing::warn!(file = %file.path().display(), %fault, "an unfinished file stays")
                }
            }
        }
    }
    swept
}
