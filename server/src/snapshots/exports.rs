//! The one folder of this host that exports are written to and read from. Owns: the check that a path does not leave it. Must not
//! know: what is in an export.

use std::path::{Component, Path, PathBuf};
use turnkv_proto::Error;

/// A place within the folder of exports: no link is on the way to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExportPlace {
    /// The folder.
    pub(super) root: PathBuf,
    /// The way on from it.
    pub(super) below: PathBuf,
}

impl ExportPlace {
    /// All of the way.
    pub(super) fn path(&self) -> PathBuf {
        self.root.join(&self.below)
    }
}

/// The place within the folder that a caller names, by its path or from the folder on. Blocking.
///
/// # Errors
/// There is no such folder, or the place is outside of it.
pub(super) fn within(exports: Option<&Path>, named: &str) -> Result<ExportPlace, Error> {
    let none =
        || Error::invalid("directory: this server exports nothing and imports nothing: set archive.exports");
    let exports = exports.ok_or_else(none)?;
    let outside = |why: &str| {
        let text =
            format!("directory: {named:?} {why}: it must be within archive.exports, {}", exports.display());
        Error::invalid(text)
    };
    let path = Path::new(named);
    let below = if path.is_absolute() {
        path.strip_prefix(exports).map_err(|_| outside("is elsewhere"))?
    } else {
        path
    };
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if below.as_os_str().is_empty() || !below.components().all(plain) || named.contains(char::is_control) {
        return Err(outside("is no plain path"));
    }
    let unreadable = |error: std::io::Error| {
        Error::invalid(format!("archive.exports, {}, cannot be used: {error}", exports.display()))
    };
    let real = exports.canonicalize().map_err(unreadable)?;
    // What is there on the way must not lead out by a link.
    let mut place = real.clone();
    for part in below.components() {
        place.push(part);
        match place.canonicalize() {
            Ok(found) if !found.starts_with(&real) => return Err(outside("leads elsewhere")),
            Ok(found) => place = found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if place.is_symlink() {
                    return Err(outside("leads elsewhere"));
                }
            }
            Err(error) => return Err(outside(&format!("cannot be used ({error})"))),
        }
    }
    let below = place.strip_prefix(&real).map_err(|_| outside("leads elsewhere"))?.to_owned();
    Ok(ExportPlace { root: real, below })
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let exports = folder.path().join("exports");
        let real = folder.path().canonicalize().unwrap().join("exports");
        assert!(within(Some(&exports), "a").unwrap_err().message.contains("archive.exports"));
        std::fs::create_dir_all(exports.join("there")).unwrap();
        std::os::unix::fs::symlink("/", exports.join("out")).unwrap();
        std::os::unix::fs::symlink("/nonexistent/place", exports.join("dangling")).unwrap();
        std::os::unix::fs::symlink("there", exports.join("in")).unwrap();
        let absolute = exports.join("a/b").display().to_string();
        for (named, place) in [("a", "a"), ("a/b", "a/b"), ("there/c", "there/c"), ("in/c", "there/c")] {
            assert_eq!(within(Some(&exports), named).unwrap().path(), real.join(place));
        }
        assert_eq!(within(Some(&exports), &absolute).unwrap().path(), real.join("a/b"));
        for named in
            ["", "/", "..", "a/../..", "/etc", "out", "out/etc", "dangling", "dangling/x", "a\0b", "a\nb"]
        {
            assert!(within(Some(&exports), named).is_err(), "{named:?}");
        }
        assert!(within(None, "a").unwrap_err().message.contains("set archive.exports"));
    }
}
