//! A shared library that is loaded at run time. Owns: finding it, and its functions' addresses. Must not know: what they do.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A loaded library. It is never unloaded: nobody could say when its last function has returned.
pub(super) struct Library {
    handle: NonNull<c_void>,
}

impl Library {
    /// The first of these that the system's loader finds.
    pub(super) fn open(names: &[&CStr]) -> Option<Library> {
        let load = |name: &&CStr| {
            // SAFETY: the name ends in a zero byte. Loading runs the library's constructors, which have no other demands.
            NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
        };
        names.iter().find_map(load).map(|handle| Library { handle })
    }

    /// The address of a function; the name ends in a zero byte.
    pub(super) fn find(&self, name: &str) -> Option<*const c_void> {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
        // SAFETY: the library is loaded, and the symbol is only asked for its address.
        let found = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(found).map(|address| address.as_ptr().cast_const())
    }
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
        assert!(Library::open(&[c"libturnkv-is-not-there.so.1"]).is_none());
    }
}
