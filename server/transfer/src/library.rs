//! A shared library that is loaded at run time. Owns: finding it, and its functions' addresses. Must not know: what they do.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::signals::keep_handlers;

/// A loaded library. It is never unloaded: nobody could say when its last function has returned.
#[derive(Debug)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
}

/// No library was loaded: why, in the words of the system's loader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotLoaded(String);

// SAFETY: a handle of the system's loader is good in every thread, and is only asked for addresses.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The first of these that the system's loader finds: names, or paths.
    ///
    /// # Errors
    /// It finds none of them, or one that it cannot load: what it says about the last one.
    pub(crate) fn open(names: &[&CStr]) -> Result<Library, NotLoaded> {
        let mut why = "no name was given".to_owned();
        for name in names {
            // SAFETY: the name ends in a zero byte. Loading runs the library's constructors, which have no other demands.
            let open = || unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            let handle = keep_handlers(open);
            match NonNull::new(handle) {
                Some(handle) => return Ok(Library { handle }),
                None => why = failure(),
            }
        }
        Err(NotLoaded(why))
    }

    /// The library at `path`, or where nobody says one, what the system's loader finds by its usual name; with
    /// the one that was opened, for people.
    ///
    /// # Errors
    /// As `open`; or the path has a zero byte.
    pub(crate) fn open_at(path: Option<&Path>, usual: &CStr) -> Result<(Library, String), NotLoaded> {
        let name = match path {
            Some(path) => CString::new(path.as_os_str().as_bytes())
                .map_err(|_| NotLoaded("the library's path has a zero byte".to_owned()))?,
            None => usual.to_owned(),
        };
        Ok((Self::open(&[&name])?, name.to_string_lossy().into_owned()))
    }

    /// The address of a function; the name ends in a zero byte.
    pub(crate) fn find(&self, name: &str) -> Option<*const c_void> {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
        // SAFETY: the library is loaded, and the symbol is only asked for its address.
        let found = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(found).map(|address| address.as_ptr().cast_const())
    }

    /// The address of a function as one version of the library's interface has it, whatever newer ones call
    /// by the same name.
    pub(crate) fn find_version(&self, name: &CStr, version: &CStr) -> Option<*const c_void> {
        // SAFETY: the library is loaded, both texts end in a zero byte, and the symbol is only asked for its
        // address.
        let found = unsafe { libc::dlvsym(self.handle.as_ptr(), name.as_ptr(), version.as_ptr()) };
        NonNull::new(found).map(|address| address.as_ptr().cast_const())
    }
}

/// What the loader says of this thread's last call that failed.
fn failure() -> String {
    // SAFETY: asks for text that stays until this thread's next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: the loader's text ends in a zero byte and is copied before the next call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::Library;

    #[test]
    fn the_first_name_that_is_there_counts() {
        let library =
            Library::open(&[c"libturnkv-is-not-there.so.1", c"libc.so.6"]).expect("every process has it");
        assert!(library.find("getpid\0").is_some());
        assert!(library.find("turnkv_is_not_there\0").is_none() && library.find("getpid").is_none());
        let why = Library::open(&[c"libturnkv-is-not-there.so.1"]).expect_err("no such library").to_string();
        assert!(why.contains("libturnkv-is-not-there.so.1"), "{why}");
    }

    #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
    #[test]
    fn a_version_of_a_function_is_found_by_its_version() {
        let library = Library::open(&[c"libc.so.6"]).expect("every process has it");
        let (old, new) =
            (library.find_version(c"memcpy", c"GLIBC_2.2.5"), library.find_version(c"memcpy", c"GLIBC_2.14"));
        assert!(old.is_some() && new.is_some());
        assert!(library.find_version(c"memcpy", c"TURNKV_1").is_none());
    }
}
