//! A folder with libfabric and all that it is linked to. Owns: loading what the system's loader would not find.
//! Must not know: what it is used for.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The library of the folder that `TURNKV_LIBFABRIC` names, or of `.tools/libfabric`; none: there is neither.
///
/// What it is linked to lies beside it, where the system's loader does not look: loaded first, one after the
/// other as they need each other, it is found by its name.
pub(crate) fn library() -> Option<PathBuf> {
    let named = std::env::var_os("TURNKV_LIBFABRIC").map(PathBuf::from);
    let tools = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/libfabric");
    let folder = named.unwrap_or_else(tools);
    let library = folder.join("libfabric.so.1");
    if !library.exists() {
        return None;
    }
    let entries = std::fs::read_dir(&folder).expect("it is a folder");
    let mut left: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    left.retain(|path| path.to_string_lossy().contains(".so."));
    loop {
        let before = left.len();
        left.retain(|path| !loads(path));
        if left.len() == before {
            return Some(library);
        }
    }
}

fn loads(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
    // SAFETY: the path ends in a zero byte. Loading runs the library's constructors, which have no other demands.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    !handle.is_null()
}
