//! The functions of CUDA's driver library. Owns: which we use, that each has the type that NVIDIA's header gives it, and
//! finding them at run time. Must not know: what they are used for.
//!
//! cudarc's own wrappers panic where a symbol is missing and return a Rust enum, which a newer driver may hand a number that
//! it has no variant for. So its declarations serve as types only: each function is found by name, once, and returns a plain
//! number; a missing one is an error like any other.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;

use crate::device::driver::{DeviceError, DeviceErrorKind};
use crate::library::Library;

/// What every function returns: a `CUresult` of this driver's version, known to us or not.
pub(super) type Code = u32;

/// What the driver's library is called, the real one's name first: under the other, which is a linker's, CUDA's toolkit keeps a
/// stub that cannot do anything.
const LIBRARY_NAMES: [&CStr; 2] = [c"libcuda.so.1", c"libcuda.so"];
/// The symbol whose type changed between CUDA 12 and 13; found by version, never by name alone.
const BATCH_SYMBOL: &str = "cuMemcpyBatchAsync\0";
/// The version of CUDA whose type of [`BATCH_SYMBOL`] we use: the first that has it.
const BATCH_VERSION: c_int = 12_080;

/// `cuMemcpyBatchAsync` as CUDA 12.8 declares it.
pub(super) type CopyBatch = unsafe extern "C" fn(
    *mut sys::CUdeviceptr,
    *mut sys::CUdeviceptr,
    *mut usize,
    usize,
    *mut sys::CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    sys::CUstream,
) -> Code;

/// One function, found by its name, if it is there.
macro_rules! function {
    ($find:ident, $symbol:ident($($argument:ty),*)) => {{
        let found = $find(concat!(stringify!($symbol), "\0"));
        // SAFETY: the caller of `resolve` vouches that this is the function of that name, whose type is compared with the
        // header's below; a CUresult is a C enum of 32 bits.
        found.map(|found| unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> Code>(found)
        })
    }};
}

macro_rules! functions {
    (
        { $($field:ident: $symbol:ident($($argument:ty),*);)* }
        loose { $($loose:ident: $loose_symbol:ident($($loose_argument:ty),*);)* }
        optional { $($optional:ident: $optional_symbol:ident($($optional_argument:ty),*);)* }
    ) => {
        /// Every function that we cannot do without, and others where this driver has them.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(super) $loose: unsafe extern "C" fn($($loose_argument),*) -> Code,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($optional_argument),*) -> Code>,)*
            /// None: a driver before CUDA 12.8.
            pub(super) copy_batch: Option<CopyBatch>,
        }

        // The types above are those of NVIDIA's header, or this does not compile.
        $(const _: unsafe fn($($argument),*) -> sys::CUresult = sys::$symbol;)*
        $(const _: unsafe fn($($optional_argument),*) -> sys::CUresult = sys::$optional_symbol;)*

        impl Api {
            /// The names of all required functions.
            #[cfg(test)]
            pub(super) const NAMES: &[&str] = &[$(stringify!($symbol),)* $(stringify!($loose_symbol)),*];

            /// Finds every function by name; `find` is given names that end in a zero byte.
            ///
            /// # Safety
            /// What `find` returns for a name is the function of that name in a CUDA driver library (or behaves as it), and
            /// stays loaded for good.
            ///
            /// # Errors
            /// `Absent`: one is missing.
            pub(super) unsafe fn resolve(find: impl Fn(&str) -> Option<*const c_void>) -> Result<Api, DeviceError> {
                let mut api = Api {
                    $($field: function!(find, $symbol($($argument),*)).ok_or_else(|| missing(stringify!($symbol)))?,)*
                    $($loose: function!(find, $loose_symbol($($loose_argument),*))
                        .ok_or_else(|| missing(stringify!($loose_symbol)))?,)*
                    $($optional: function!(find, $optional_symbol($($optional_argument),*)),)*
                    copy_batch: None,
                };
                api.copy_batch = api.find_copy_batch();
                Ok(api)
            }
        }
    };
}

functions! {
{
    init: cuInit(c_uint);
    driver_version: cuDriverGetVersion(*mut c_int);
    proc_address: cuGetProcAddress_v2(*const c_char, *mut *mut c_void, c_int, u64, *mut sys::CUdriverProcAddressQueryResult);
    device_count: cuDeviceGetCount(*mut c_int);
    device_get: cuDeviceGet(*mut sys::CUdevice, c_int);
    device_name: cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
    device_attribute: cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
    device_bus: cuDeviceGetPCIBusId(*mut c_char, c_int, sys::CUdevice);
    primary_retain: cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
    primary_release: cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
    context_current: cuCtxGetCurrent(*mut sys::CUcontext);
    context_push: cuCtxPushCurrent_v2(sys::CUcontext);
    context_pop: cuCtxPopCurrent_v2(*mut sys::CUcontext);
    stream_priorities: cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    capture_mode: cuThreadExchangeStreamCaptureMode(*mut sys::CUstreamCaptureMode);
    memory_info: cuMemGetInfo_v2(*mut usize, *mut usize);
    memory_take: cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
    memory_give: cuMemFree_v2(sys::CUdeviceptr);
    pinned_take: cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    pinned_give: cuMemFreeHost(*mut c_void);
    host_register: cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    host_unregister: cuMemHostUnregister(*mut c_void);
    stream_new: cuStreamCreateWithPriority(*mut sys::CUstream, c_uint, c_int);
    stream_end: cuStreamDestroy_v2(sys::CUstream);
    stream_wait: cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
    event_new: cuEventCreate(*mut sys::CUevent, c_uint);
    event_end: cuEventDestroy_v2(sys::CUevent);
    event_record: cuEventRecord(sys::CUevent, sys::CUstream);
    event_query: cuEventQuery(sys::CUevent);
    copy: cuMemcpyAsync(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
    module_load: cuModuleLoadDataEx(*mut sys::CUmodule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void);
    module_function: cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
    module_unload: cuModuleUnload(sys::CUmodule);
    launch: cuLaunchKernel(sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream, *mut *mut c_void, *mut *mut c_void);
}
// The header's argument is an enum that an unknown number must not become.
loose {
    error_name: cuGetErrorName(Code, *mut *const c_char);
    error_text: cuGetErrorString(Code, *mut *const c_char);
    stream_capturing: cuStreamIsCapturing(sys::CUstream, *mut u32);
}
optional {
    memory_export: cuMemGetHandleForAddressRange(*mut c_void, sys::CUdeviceptr, usize, sys::CUmemRangeHandleType, c_ulonglong);
    flush_writes: cuFlushGPUDirectRDMAWrites(sys::CUflushGPUDirectRDMAWritesTarget, sys::CUflushGPUDirectRDMAWritesScope);
}
}

// As above, for the one that is found by version.
#[expect(clippy::type_complexity, reason = "a header's type, written once to compare with")]
const _: unsafe fn(
    *mut sys::CUdeviceptr,
    *mut sys::CUdeviceptr,
    *mut usize,
    usize,
    *mut sys::CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    sys::CUstream,
) -> sys::CUresult = sys::cuMemcpyBatchAsync;

impl Api {
    /// The functions of this machine's driver library, loaded on the first call and started once.
    ///
    /// # Errors
    /// `Absent`: there is none, it is too old, or it does not start.
    pub(super) fn of_machine() -> Result<&'static Api, DeviceError> {
        static API: OnceLock<Result<Api, DeviceError>> = OnceLock::new();
        API.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Api, DeviceError> {
        let Ok(library) = Library::open(&LIBRARY_NAMES) else {
            return Err(DeviceError::new(
                DeviceErrorKind::Absent,
                "no CUDA driver library (libcuda.so.1) was found: install NVIDIA's driver, or go on without a GPU",
            ));
        };
        let find = |name: &str| library.find(name);
        // SAFETY: the names are looked up in the driver library itself.
        let api = unsafe { Self::resolve(find) }?;
        api.start()?;
        Ok(api)
    }

    /// Starts the driver: once a process.
    pub(super) fn start(&self) -> Result<(), DeviceError> {
        // SAFETY: no arguments that could be wrong.
        let code = unsafe { (self.init)(0) };
        self.check(code, "starting CUDA (cuInit)").map_err(|mut failed| {
            failed.kind = DeviceErrorKind::Absent;
            failed
        })
    }

    /// What a device says of itself.
    ///
    /// # Errors
    /// The driver does not know the question, or is broken.
    pub(super) fn attribute(
        &self,
        device: sys::CUdevice,
        which: sys::CUdevice_attribute,
    ) -> Result<c_int, DeviceError> {
        let mut value = 0;
        // SAFETY: `value` has room for a number, and the device was named by the driver.
        let code = unsafe { (self.device_attribute)(&raw mut value, which, device) };
        self.check(code, "asking what the device can do")?;
        Ok(value)
    }

    /// The batch copy with the type of CUDA 12.8. By its name alone, which type a driver of CUDA 13 exports is nowhere
    /// promised; by version it is.
    fn find_copy_batch(&self) -> Option<CopyBatch> {
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends in a zero byte, `found` has room for an address, and the last argument may be null.
        let code = unsafe {
            (self.proc_address)(
                BATCH_SYMBOL.as_ptr().cast(),
                &raw mut found,
                BATCH_VERSION,
                0,
                std::ptr::null_mut(),
            )
        };
        if code != 0 || found.is_null() {
            return None;
        }
        // SAFETY: the driver gives the function as version 12.8 declares it, which is this type.
        Some(unsafe { std::mem::transmute::<*mut c_void, CopyBatch>(found) })
    }
}

fn missing(symbol: &str) -> DeviceError {
    DeviceError::new(
        DeviceErrorKind::Absent,
        format!(
            "the CUDA driver has no {symbol}: it is older than CUDA 12.0; install a newer driver (535 or later)"
        ),
    )
}
