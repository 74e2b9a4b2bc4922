//! Our kernels on a device. Owns: loading them, their names, their launch shapes. Must not know: what the tables name.
//!
//! They are checked in as PTX (what `kernels.sh` makes of `kernels.cu`), which the driver compiles for the device at hand. A
//! driver too old for it, or one without its compiler, runs everything but kernels.

use std::ffi::{CStr, c_uint, c_void};

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::api::Api;
use crate::device::driver::{DeviceAddress, DeviceError, DeviceErrorKind, Kernel};
use crate::limits::{
    CHECKSUM_BLOCKS_MAX, CHECKSUM_WARP_PIECES_MIN, JIT_LOG_BYTES, KERNEL_BLOCKS_MAX, SHA256_BLOCKS_MAX,
};

/// The kernels' text, with the zero byte that the driver wants.
const PTX: &str = concat!(include_str!("../kernels.ptx"), "\0");

/// Threads of a block that copies. As `kernels.cu` has it.
const COPY_THREADS: u32 = 512;
/// Threads of a block that takes checksums. As `kernels.cu` has it.
const CHECKSUM_THREADS: u32 = 256;
/// Threads of a warp: of a block that hashes pieces, or combines the checksums of one page.
const WARP_THREADS: u32 = 32;

/// The kernels of one context: loaded when first used.
pub(super) struct Module {
    loaded: Mutex<Option<Result<Functions, DeviceError>>>,
}

#[derive(Clone, Copy)]
struct Functions {
    module: sys::CUmodule,
    copy: sys::CUfunction,
    checksum_by_warp: sys::CUfunction,
    checksum_by_block: sys::CUfunction,
    checksum_pages: sys::CUfunction,
    sha256: sys::CUfunction,
}

// SAFETY: opaque names of things that live as long as their module, usable from any thread that is in their context.
unsafe impl Send for Functions {}

/// One launch of one function.
struct Launch<'a> {
    function: sys::CUfunction,
    blocks: u32,
    threads: u32,
    arguments: &'a mut [*mut c_void],
}

impl Module {
    pub(super) fn new() -> Module {
        Module { loaded: Mutex::new(None) }
    }

    /// Enqueues a kernel. The caller is in the context.
    ///
    /// # Safety
    /// As [`crate::device::Driver::launch`].
    pub(super) unsafe fn launch(
        &self,
        api: &Api,
        kernel: Kernel,
        stream: sys::CUstream,
    ) -> Result<(), DeviceError> {
        let functions = self.functions(api)?;
        match kernel {
            Kernel::Copy { mut pieces, mut count, blocks } => {
                if count == 0 {
                    return Ok(());
                }
                let mut arguments = [address(&mut pieces), number(&mut count)];
                let blocks = blocks.clamp(1, KERNEL_BLOCKS_MAX);
                let launch = Launch {
                    function: functions.copy,
                    blocks,
                    threads: COPY_THREADS,
                    arguments: &mut arguments,
                };
                // SAFETY: the caller vouches for the table; the arguments are those of the function.
                unsafe { launch.enqueue(api, stream) }
            }
            // SAFETY: the caller vouches for tables and outputs.
            Kernel::Checksum { .. } => unsafe { launch_checksum(api, functions, kernel, stream) },
            Kernel::Sha256 { mut pieces, mut count, mut output } => {
                if count == 0 {
                    return Ok(());
                }
                let mut arguments = [address(&mut pieces), number(&mut count), address(&mut output)];
                let blocks = count.div_ceil(WARP_THREADS).min(SHA256_BLOCKS_MAX);
                let launch = Launch {
                    function: functions.sha256,
                    blocks,
                    threads: WARP_THREADS,
                    arguments: &mut arguments,
                };
                // SAFETY: as above.
                unsafe { launch.enqueue(api, stream) }
            }
        }
    }

    /// Loads the kernels unless that is done. A refusal for good is remembered, a lack of memory is not.
    fn functions(&self, api: &Api) -> Result<Functions, DeviceError> {
        let mut loaded = self.loaded.lock();
        if let Some(known) = &*loaded {
            return known.clone();
        }
        let answer = load(api);
        let passing = matches!(&answer, Err(failed) if failed.kind == DeviceErrorKind::NoMemory);
        if !passing {
            *loaded = Some(answer.clone());
        }
        answer
    }

    /// Unloads the kernels. The caller is in the context, and no kernel runs.
    pub(super) fn unload(&self, api: &Api) {
        if let Some(Ok(functions)) = self.loaded.lock().take() {
            // Nobody is left to tell of a failure.
            // SAFETY: loaded once, unloaded once, and no launch can follow.
            unsafe { (api.module_unload)(functions.module) };
        }
    }
}

/// Checksums of pages: those of their pieces, then what these make together.
///
/// # Safety
/// As [`Module::launch`].
unsafe fn launch_checksum(
    api: &Api,
    functions: Functions,
    kernel: Kernel,
    stream: sys::CUstream,
) -> Result<(), DeviceError> {
    let Kernel::Checksum { mut pieces, mut count, mut pages, mut page_count, mut scratch, mut output } =
        kernel
    else {
        return Ok(());
    };
    if count == 0 || page_count == 0 {
        return Ok(());
    }
    // Few pieces: a block for each, so that the device has enough to do. Many: a warp for each, which costs least in all.
    let by_warp = count >= CHECKSUM_WARP_PIECES_MIN;
    let pieces_a_block = if by_warp { CHECKSUM_THREADS / WARP_THREADS } else { 1 };
    let mut arguments = [address(&mut pieces), number(&mut count), address(&mut scratch)];
    let first = Launch {
        function: if by_warp { functions.checksum_by_warp } else { functions.checksum_by_block },
        blocks: count.div_ceil(pieces_a_block).min(CHECKSUM_BLOCKS_MAX),
        threads: CHECKSUM_THREADS,
        arguments: &mut arguments,
    };
    // SAFETY: the caller vouches for the tables; the arguments are those of the function.
    unsafe { first.enqueue(api, stream) }?;
    let mut arguments = [
        address(&mut pieces),
        address(&mut pages),
        number(&mut page_count),
        address(&mut scratch),
        address(&mut output),
    ];
    let second = Launch {
        function: functions.checksum_pages,
        blocks: page_count.min(CHECKSUM_BLOCKS_MAX),
        threads: WARP_THREADS,
        arguments: &mut arguments,
    };
    // SAFETY: as above. Should it fail, the first has written nothing but scratch.
    unsafe { second.enqueue(api, stream) }
}

impl Launch<'_> {
    /// # Safety
    /// The arguments are those of the function, and what they name is valid until it has run.
    unsafe fn enqueue(self, api: &Api, stream: sys::CUstream) -> Result<(), DeviceError> {
        let (blocks, threads) = (self.blocks, self.threads);
        let arguments = self.arguments.as_mut_ptr();
        // SAFETY: the caller vouches for the arguments; the driver copies them before it returns.
        let code = unsafe {
            (api.launch)(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                arguments,
                std::ptr::null_mut(),
            )
        };
        api.check(code, "launching a kernel")
    }
}

fn address(value: &mut DeviceAddress) -> *mut c_void {
    (&raw mut *value).cast()
}

fn number(value: &mut u32) -> *mut c_void {
    (&raw mut *value).cast()
}

/// Has the driver compile our PTX. The caller is in the context.
fn load(api: &Api) -> Result<Functions, DeviceError> {
    let mut log = [0_u8; JIT_LOG_BYTES];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The second value is a number where the type says address: that is how the driver takes it.
    let mut values: [*mut c_void; 2] =
        [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len() - 1)];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends in a zero byte; two options and their values; the log has room for what its size says.
    let code = unsafe {
        (api.module_load)(&raw mut module, PTX.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    api.check(code, "loading our kernels").map_err(|mut failed| {
        let said = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
        if !said.is_empty() {
            failed.message = format!("{}; its compiler says: {}", failed.message, said.trim());
        }
        failed
    })?;
    find_all(api, module).inspect_err(|_| {
        // SAFETY: loaded just now, and nobody else knows it.
        unsafe { (api.module_unload)(module) };
    })
}

fn find_all(api: &Api, module: sys::CUmodule) -> Result<Functions, DeviceError> {
    let find = |name: &CStr| {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero byte.
        let code = unsafe { (api.module_function)(&raw mut function, module, name.as_ptr()) };
        api.check(code, "finding a kernel of ours").map(|()| function)
    };
    Ok(Functions {
        module,
        copy: find(c"turnkv_copy")?,
        checksum_by_warp: find(c"turnkv_checksum_by_warp")?,
        checksum_by_block: find(c"turnkv_checksum_by_block")?,
        checksum_pages: find(c"turnkv_checksum_pages")?,
        sha256: find(c"turnkv_sha256")?,
    })
}

const _: () =
    assert!(KERNEL_BLOCKS_MAX <= c_uint::MAX / COPY_THREADS, "a launch counts its threads in 32 bits");
