//! libibverbs' exported functions, found at run time. Owns: which we use. Must not know: what they are used
//! for. The ones that a header would have inlined go through the device's table, see `queue_pair`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use super::sys::{
    IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvGid, IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr,
    IbvQpInitAttr,
};
use crate::fabric::contract::OpenError;
use crate::library::Library;

/// What the library is called where nobody says where it is.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// `ibv_reg_dmabuf_mr`: domain, offset, length, the address that peers use, dma-buf, access.
type RegisterDmaBuf = unsafe extern "C" fn(*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr;

macro_rules! functions {
    ($($field:ident: $symbol:literal fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, all of one library that stays loaded.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct VerbsApi {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// None: a library before rdma-core 34.
            pub(super) register_dmabuf: Option<RegisterDmaBuf>,
        }

        impl VerbsApi {
            fn resolve(library: &Library) -> Option<Self> {
                // SAFETY: for all of them: the name is looked up in libibverbs itself, in the version of its
                // interface whose header has this type; the library stays loaded for good.
                unsafe {
                    Some(Self {
                        $($field: std::mem::transmute::<
                            *const c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(library.find_version($symbol, c"IBVERBS_1.1")?),)*
                        register_dmabuf: library.find_version(c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12").map(
                            |found| std::mem::transmute::<*const c_void, RegisterDmaBuf>(found),
                        ),
                    })
                }
            }
        }
    };
}

functions! {
    device_list: c"ibv_get_device_list" fn(*mut c_int) -> *mut *mut IbvDevice;
    free_device_list: c"ibv_free_device_list" fn(*mut *mut IbvDevice);
    device_name: c"ibv_get_device_name" fn(*mut IbvDevice) -> *const c_char;
    open_device: c"ibv_open_device" fn(*mut IbvDevice) -> *mut IbvContext;
    close_device: c"ibv_close_device" fn(*mut IbvContext) -> c_int;
    query_device: c"ibv_query_device" fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
    query_port: c"ibv_query_port" fn(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
    query_gid: c"ibv_query_gid" fn(*mut IbvContext, u8, c_int, *mut IbvGid) -> c_int;
    alloc_pd: c"ibv_alloc_pd" fn(*mut IbvContext) -> *mut IbvPd;
    dealloc_pd: c"ibv_dealloc_pd" fn(*mut IbvPd) -> c_int;
    register: c"ibv_reg_mr" fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
    deregister: c"ibv_dereg_mr" fn(*mut IbvMr) -> c_int;
    create_cq: c"ibv_create_cq" fn(*mut IbvContext, c_int, *mut c_void, *mut c_void, c_int) -> *mut IbvCq;
    destroy_cq: c"ibv_destroy_cq" fn(*mut IbvCq) -> c_int;
    create_qp: c"ibv_create_qp" fn(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
    modify_qp: c"ibv_modify_qp" fn(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
    query_qp: c"ibv_query_qp" fn(*mut IbvQp, *mut IbvQpAttr, c_int, *mut IbvQpInitAttr) -> c_int;
    destroy_qp: c"ibv_destroy_qp" fn(*mut IbvQp) -> c_int;
    status_words: c"ibv_wc_status_str" fn(c_int) -> *const c_char;
}

impl VerbsApi {
    /// Loads the library from where `path` says, or from where the system has it.
    ///
    /// # Errors
    /// `Unavailable`: there is none, or it is not one that we know.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, OpenError> {
        let opened = Library::open_at(path, LIBRARY);
        let (library, name) = opened.map_err(|why| OpenError::Unavailable(why.to_string()))?;
        Self::resolve(&library).ok_or_else(|| {
            OpenError::Unavailable(format!(
                "{name} has not the functions of libibverbs' interface 1.1: install rdma-core"
            ))
        })
    }

    /// What a work completion's status means, in the library's words.
    pub(super) fn words(&self, status: c_int) -> String {
        // SAFETY: any number may be asked about.
        let text = unsafe { (self.status_words)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: the library answers with text of its own that ends in a zero byte and is never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
