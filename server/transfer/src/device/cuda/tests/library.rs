//! A library that is not NVIDIA's: functions under the same names, which note what they are asked and fail when told to.
//! Owns: that, and its one state. Must not know: what is tested.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard};

use cudarc::driver::sys;
use parking_lot::ReentrantMutex;

use super::super::api::{Api, Code, CopyBatch};

/// What the library notes, and how it is told to behave.
pub(super) struct Fake {
    /// The functions called, in order.
    pub(super) calls: Vec<&'static str>,
    /// Numbers of the calls that say more than a name: flags, sizes, shapes.
    pub(super) noted: Vec<(&'static str, Vec<u64>)>,
    /// What functions return instead of 0.
    pub(super) codes: HashMap<&'static str, Code>,
    /// Attributes that are not 1.
    pub(super) attributes: HashMap<u32, c_int>,
    /// Host memory that is registered: where each registration begins and ends.
    pub(super) registered: Vec<(u64, u64)>,
    /// What streams' captures are like; others are not captured.
    pub(super) captures: HashMap<usize, u32>,
    /// The thread's contexts, the current one last.
    pub(super) contexts: Vec<usize>,
    pub(super) mode: u32,
    /// What an export gives.
    pub(super) descriptor: c_int,
}

pub(super) const OURS: usize = 0x51;
pub(super) const ENGINES: usize = 0x77;

pub(super) static FAKE: LazyLock<Mutex<Fake>> = LazyLock::new(|| Mutex::new(fresh()));
/// Tests take turns: the library has one state, as a real one has.
pub(super) static TURN: ReentrantMutex<()> = ReentrantMutex::new(());

pub(super) fn fresh() -> Fake {
    Fake {
        calls: Vec::new(),
        noted: Vec::new(),
        codes: HashMap::new(),
        attributes: HashMap::new(),
        registered: Vec::new(),
        captures: HashMap::new(),
        contexts: Vec::new(),
        mode: 0,
        descriptor: -1,
    }
}

pub(super) fn fake() -> MutexGuard<'static, Fake> {
    FAKE.lock().expect("no test panics while it holds this")
}

pub(super) fn called(name: &'static str) -> Code {
    let mut fake = fake();
    fake.calls.push(name);
    fake.codes.get(name).copied().unwrap_or(0)
}

pub(super) fn note(name: &'static str, numbers: &[u64]) {
    fake().noted.push((name, numbers.to_vec()));
}

macro_rules! library {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "NVIDIA's names")]
            unsafe extern "C" fn $name($($argument: $type),*) -> Code {
                let code = called(stringify!($name));
                if code != 0 {
                    return code;
                }
                // SAFETY: the driver under test hands over what the function's documentation asks for.
                #[allow(unused_unsafe, reason = "some only note")]
                unsafe { $body };
                0
            }
        )*

        pub(crate) fn find(name: &str) -> Option<*const c_void> {
            match name.trim_end_matches('\0') {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

library! {
    cuInit(_flags: c_uint) {}
    cuDriverGetVersion(version: *mut c_int) { *version = 13_010; }
    cuGetErrorName(_code: Code, words: *mut *const c_char) { *words = c"CUDA_ERROR_OF_THIS_TEST".as_ptr(); }
    cuGetErrorString(_code: Code, words: *mut *const c_char) { *words = c"told to fail".as_ptr(); }
    cuGetProcAddress_v2(
        name: *const c_char, found: *mut *mut c_void, version: c_int, _flags: u64,
        _answer: *mut sys::CUdriverProcAddressQueryResult
    ) {
        assert_eq!(std::ffi::CStr::from_ptr(name), c"cuMemcpyBatchAsync");
        assert_eq!(version, 12_080, "the type is that of CUDA 12.8");
        *found = batch as CopyBatch as *mut c_void;
    }
    cuDeviceGetCount(count: *mut c_int) { *count = 2; }
    cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int) { *device = ordinal; }
    cuDeviceGetName(name: *mut c_char, bytes: c_int, _device: sys::CUdevice) {
        assert!(bytes > 10);
        std::ptr::copy_nonoverlapping(c"Test GPU".as_ptr(), name, 9);
    }
    cuDeviceGetAttribute(value: *mut c_int, which: sys::CUdevice_attribute, _device: sys::CUdevice) {
        *value = fake().attributes.get(&(which as u32)).copied().unwrap_or(1);
    }
    cuDeviceGetPCIBusId(name: *mut c_char, _bytes: c_int, _device: sys::CUdevice) {
        std::ptr::copy_nonoverlapping(c"FFFF:FF:1F.7".as_ptr(), name, 13);
    }
    cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, _device: sys::CUdevice) {
        *context = std::ptr::without_provenance_mut(OURS);
    }
    cuDevicePrimaryCtxRelease_v2(_device: sys::CUdevice) {}
    cuCtxGetCurrent(context: *mut sys::CUcontext) {
        *context = std::ptr::without_provenance_mut(fake().contexts.last().copied().unwrap_or(0));
    }
    cuCtxPushCurrent_v2(context: sys::CUcontext) { fake().contexts.push(context.addr()); }
    cuCtxPopCurrent_v2(_context: *mut sys::CUcontext) { fake().contexts.pop(); }
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) { *least = 0; *greatest = -5; }
    cuThreadExchangeStreamCaptureMode(mode: *mut sys::CUstreamCaptureMode) {
        let mut fake = fake();
        let before = match fake.mode {
            0 => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            1 => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            _ => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        fake.mode = *mode as u32;
        *mode = before;
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { *free = 3 << 30; *total = 80 << 30; }
    cuMemAlloc_v2(address: *mut sys::CUdeviceptr, bytes: usize) {
        note("allocate", &[bytes as u64]);
        *address = 0x1000;
    }
    cuMemFree_v2(_address: sys::CUdeviceptr) {}
    cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: sys::CUdeviceptr, bytes: usize, kind: sys::CUmemRangeHandleType, flags: u64
    ) {
        note("export", &[address, bytes as u64, kind as u64, flags, fake_context()]);
        *handle.cast::<c_int>() = fake().descriptor;
    }
    cuFlushGPUDirectRDMAWrites(
        target: sys::CUflushGPUDirectRDMAWritesTarget, scope: sys::CUflushGPUDirectRDMAWritesScope
    ) {
        note("flush", &[target as u64, scope as u64, fake_context()]);
    }
    cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) {
        note("pinned", &[u64::from(flags)]);
        *memory = Box::leak(vec![0_u8; bytes].into_boxed_slice()).as_mut_ptr().cast(); // tables are written there
    }
    cuMemFreeHost(_memory: *mut c_void) {}
    cuMemHostRegister_v2(base: *mut c_void, bytes: usize, flags: c_uint) {
        let (start, end) = (base.addr() as u64, (base.addr() + bytes) as u64);
        if fake().registered.iter().any(|known| start < known.1 && known.0 < end) {
            return 712;
        }
        fake().registered.push((start, end));
        note("register", &[bytes as u64, u64::from(flags)]);
    }
    cuMemHostUnregister(base: *mut c_void) {
        let start = base.addr() as u64;
        let Some(at) = fake().registered.iter().position(|known| known.0 == start) else { return 713 };
        fake().registered.remove(at);
    }
    cuStreamCreateWithPriority(stream: *mut sys::CUstream, flags: c_uint, priority: c_int) {
        note("stream", &[u64::from(flags), priority as u64]);
        *stream = std::ptr::without_provenance_mut(0x3000);
    }
    cuStreamDestroy_v2(_stream: sys::CUstream) {}
    cuStreamIsCapturing(stream: sys::CUstream, status: *mut u32) {
        *status = fake().captures.get(&stream.addr()).copied().unwrap_or(0);
    }
    cuStreamWaitEvent(_stream: sys::CUstream, _event: sys::CUevent, _flags: c_uint) {}
    cuEventCreate(event: *mut sys::CUevent, flags: c_uint) {
        note("event", &[u64::from(flags)]);
        *event = std::ptr::without_provenance_mut(0x4000);
    }
    cuEventDestroy_v2(_event: sys::CUevent) {}
    cuEventRecord(event: sys::CUevent, stream: sys::CUstream) {
        note("record", &[event.addr() as u64, stream.addr() as u64]);
    }
    cuEventQuery(_event: sys::CUevent) {}
    cuMemcpyAsync(target: sys::CUdeviceptr, source: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream) {
        if leaves_a_registration(target, bytes) || leaves_a_registration(source, bytes) {
            return 1;
        }
        note("copy", &[target, source, bytes as u64, stream.addr() as u64, fake_context()]);
    }
    cuModuleLoadDataEx(
        module: *mut sys::CUmodule, image: *const c_void, options: c_uint, _which: *mut sys::CUjit_option,
        _values: *mut *mut c_void
    ) {
        let text = std::ffi::CStr::from_ptr(image.cast()).to_bytes();
        note("module", &[text.len() as u64, u64::from(options), fake_context()]);
        *module = std::ptr::without_provenance_mut(0x5000);
    }
    cuModuleGetFunction(function: *mut sys::CUfunction, _module: sys::CUmodule, name: *const c_char) {
        let name = std::ffi::CStr::from_ptr(name).to_str().expect("names are ASCII");
        let place = FUNCTIONS.iter().position(|known| *known == name).expect("a kernel of kernels.cu");
        *function = std::ptr::without_provenance_mut(place + 1);
    }
    cuModuleUnload(_module: sys::CUmodule) { note("unload", &[fake_context()]); }
    cuLaunchKernel(
        function: sys::CUfunction, x: c_uint, _y: c_uint, _z: c_uint, threads: c_uint, _ty: c_uint, _tz: c_uint,
        _shared: c_uint, _stream: sys::CUstream, arguments: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        let first = **arguments.cast::<*mut u64>();
        note(FUNCTIONS[function.addr() - 1], &[u64::from(x), u64::from(threads), first]);
    }
}

pub(super) const FUNCTIONS: [&str; 5] = [
    "turnkv_copy",
    "turnkv_checksum_by_warp",
    "turnkv_checksum_by_block",
    "turnkv_checksum_pages",
    "turnkv_sha256",
];

unsafe extern "C" fn batch(
    targets: *mut u64,
    sources: *mut u64,
    sizes: *mut usize,
    count: usize,
    attributes: *mut sys::CUmemcpyAttributes,
    attribute_of: *mut usize,
    attribute_count: usize,
    _failed: *mut usize,
    _stream: sys::CUstream,
) -> Code {
    // SAFETY: at least one copy and one attribute, as the driver library asks.
    let (first, order, of) = unsafe { (*targets, (*attributes).srcAccessOrder as u64, *attribute_of) };
    for at in 0..count {
        // SAFETY: three arrays of as many as are told.
        let (target, source, bytes) = unsafe { (*targets.add(at), *sources.add(at), *sizes.add(at)) };
        if leaves_a_registration(target, bytes) || leaves_a_registration(source, bytes) {
            return 1;
        }
    }
    note("batch", &[count as u64, first, order, of as u64, attribute_count as u64]);
    let batches = noted("batch").len() as u32;
    let code = called("batch");
    if batches > 1 { code } else { 0 } // told to fail, it fails from the second on
}

/// Whether a range begins in one registration and ends behind it: a driver refuses such a copy, whatever lies there.
fn leaves_a_registration(start: u64, bytes: usize) -> bool {
    let end = start + bytes as u64;
    fake().registered.iter().any(|known| known.0 <= start && start < known.1 && end > known.1)
}

pub(super) fn fake_context() -> u64 {
    fake().contexts.last().copied().unwrap_or(0) as u64
}

pub(super) fn noted(name: &str) -> Vec<Vec<u64>> {
    fake().noted.iter().filter(|(of, _)| *of == name).map(|(_, numbers)| numbers.clone()).collect()
}

pub(super) fn count(name: &str) -> usize {
    fake().calls.iter().filter(|call| **call == name).count()
}

pub(super) fn fail(name: &'static str, code: Code) {
    fake().codes.insert(name, code);
}

/// The library as a driver finds it, in a fresh state. The answer keeps other tests waiting.
pub(super) fn library() -> (impl Drop, &'static Api) {
    let turn = TURN.lock();
    *FAKE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = fresh();
    // SAFETY: the functions of this file have the types of the ones they are named after.
    let api = unsafe { Api::resolve(find) }.expect("all are there");
    (turn, Box::leak(Box::new(api)))
}
