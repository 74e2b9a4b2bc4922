//! libfabric's exported functions, found at run time. Owns: which we use, and in which version. Must not know:
//! what they are used for. All others come from tables that objects of the library carry.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use super::sys::{FiFabric, FiFabricAttr, FiInfo, version};
use crate::fabric::contract::OpenError;
use crate::library::Library;

/// What the library is called where nobody says where it is.
const LIBRARY: &CStr = c"libfabric.so.1";
/// The newest version of the interface whose meaning we know.
const VERSION_MAX: u32 = version(1, 20);

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int;

/// The functions, all of one library that stays loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct FabricApi {
    pub(super) getinfo: GetInfo,
    pub(super) freeinfo: unsafe extern "C" fn(*mut FiInfo),
    pub(super) dupinfo: unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo,
    pub(super) fabric: unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FiFabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

impl FabricApi {
    /// Loads the library from where `path` says, or from where the system has it.
    ///
    /// # Errors
    /// `Unavailable`: there is none, or it is not one that we know.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, OpenError> {
        let opened = Library::open_at(path, LIBRARY);
        let (library, name) = opened.map_err(|why| OpenError::Unavailable(why.to_string()))?;
        Self::resolve(&library).ok_or_else(|| {
            OpenError::Unavailable(format!(
                "{name} has not the functions of libfabric's interface 1.3: install libfabric 1.8 or later"
            ))
        })
    }

    fn resolve(library: &Library) -> Option<Self> {
        const FUNCTIONS: &CStr = c"FABRIC_1.3";
        // SAFETY: for all of them: the name is looked up in libfabric itself, in the version of its interface
        // whose header has this type; the library stays loaded for good.
        unsafe {
            let version = std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> u32>(
                library.find("fi_version\0")?,
            );
            Some(Self {
                getinfo: std::mem::transmute::<*const c_void, GetInfo>(
                    library.find_version(c"fi_getinfo", FUNCTIONS)?,
                ),
                freeinfo: std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut FiInfo)>(
                    library.find_version(c"fi_freeinfo", FUNCTIONS)?,
                ),
                dupinfo: std::mem::transmute::<
                    *const c_void,
                    unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo,
                >(library.find_version(c"fi_dupinfo", FUNCTIONS)?),
                fabric: std::mem::transmute::<
                    *const c_void,
                    unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FiFabric, *mut c_void) -> c_int,
                >(library.find_version(c"fi_fabric", c"FABRIC_1.1")?),
                strerror: std::mem::transmute::<*const c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                    library.find("fi_strerror\0")?,
                ),
                version: version(),
            })
        }
    }

    /// The library's version, and the version of the interface that we ask it for.
    pub(super) fn versions(&self) -> (u32, u32) {
        (self.version, self.version.min(VERSION_MAX))
    }

    /// What an error number means, in the library's words. Negative ones, as functions return them, too.
    pub(super) fn words(&self, code: i64) -> String {
        let code = c_int::try_from(code.unsigned_abs()).unwrap_or(c_int::MAX);
        // SAFETY: any number may be asked about.
        let text = unsafe { (self.strerror)(code) };
        if text.is_null() {
            return format!("libfabric error {code}");
        }
        // SAFETY: the library answers with text of its own that ends in a zero byte and is never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
