//! What the driver's numbers mean. Owns: the kind and the advice for each `CUresult`. Must not know: which call failed, beyond
//! the words it is handed.

use std::ffi::{CStr, c_char};

use super::api::{Api, Code};
use crate::device::driver::{DeviceError, DeviceErrorKind};

/// `CUDA_ERROR_NOT_READY`: work is still under way. No failure.
pub(super) const NOT_READY: Code = 600;

/// What to do where the driver's number leaves one thing to do.
const ADVICE: [(&[Code], DeviceErrorKind, &str); 13] = [
    (&[1, 201, 400], DeviceErrorKind::Invalid, "an address, a size or a handle is not one of this device"),
    (
        &[2],
        DeviceErrorKind::NoMemory,
        "the device or the host has not that much memory left: ask for less, or free some",
    ),
    (
        &[3, 34, 46, 100, 101, 802, 803, 804],
        DeviceErrorKind::Absent,
        "no usable device: see `nvidia-smi`, the driver's version, CUDA_VISIBLE_DEVICES, and that no fork came after CUDA began",
    ),
    (
        &[36, 200, 209, 218, 221, 222, 223, 701],
        DeviceErrorKind::Unsupported,
        "this driver cannot run the kernels that we ship: copies go on without them; a newer driver can",
    ),
    (&[500, 800, 801], DeviceErrorKind::Unsupported, "this driver or device cannot do that"),
    (
        &[304],
        DeviceErrorKind::NoMemory,
        "the system refused: raise the locked-memory limit (ulimit -l) or the container's memory limit",
    ),
    (&[712], DeviceErrorKind::Invalid, "this memory is registered already, perhaps by another library"),
    (&[713], DeviceErrorKind::Invalid, "this memory is not registered"),
    (
        &[900, 901, 902, 903, 904, 905, 906, 907, 908],
        DeviceErrorKind::Invalid,
        "the stream is being captured into a graph: offload and reload outside of captures",
    ),
    (&[4, 709], DeviceErrorKind::Broken, "CUDA is shutting down, or the engine reset its context"),
    (
        &[214, 220, 226],
        DeviceErrorKind::Broken,
        "memory or a link of the device is faulty: see `nvidia-smi -q` and dmesg",
    ),
    (
        &[700, 702, 710, 714, 715, 716, 717, 718, 719, 720, 721],
        DeviceErrorKind::Broken,
        "a kernel of this process failed, ours or the engine's: the process must be started anew",
    ),
    (&[805, 806, 807, 808, 809], DeviceErrorKind::Broken, "the MPS server is gone or has too many clients"),
];

impl Api {
    /// Success, or the error that the number stands for.
    pub(super) fn check(&self, code: Code, tried: &str) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(self.error(code, tried)) }
    }

    /// The error that a number other than 0 stands for. `tried` is what we wanted, for people.
    pub(super) fn error(&self, code: Code, tried: &str) -> DeviceError {
        let (kind, advice) = judge(code);
        let name = self.words(self.error_name, code).unwrap_or_else(|| format!("CUDA error {code}"));
        let text = self.words(self.error_text, code).unwrap_or_else(|| "unknown to this driver".to_owned());
        DeviceError::new(kind, format!("{tried}: {name} ({text}); {advice}"))
    }

    fn words(
        &self,
        ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
        code: Code,
    ) -> Option<String> {
        let mut words = std::ptr::null();
        // SAFETY: any number may be asked about, and `words` has room for the answer.
        let asked = unsafe { ask(code, &raw mut words) };
        if asked != 0 || words.is_null() {
            return None;
        }
        // SAFETY: the driver answers with text of its own that ends in a zero byte and is never freed.
        Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
    }
}

/// What a number means. One that nobody has told us of is taken for the worst: that costs a device, not a page.
fn judge(code: Code) -> (DeviceErrorKind, &'static str) {
    let known = ADVICE.iter().find(|(codes, ..)| codes.contains(&code));
    known.map_or(
        (DeviceErrorKind::Broken, "nothing that was begun on this device can be taken for done"),
        |(_, kind, advice)| (*kind, *advice),
    )
}

#[cfg(test)]
mod tests {
    use super::{ADVICE, judge};
    use crate::device::driver::DeviceErrorKind;
    use cudarc::driver::sys::CUresult;

    #[test]
    fn every_number_is_judged_once() {
        let mut codes: Vec<u32> = ADVICE.iter().flat_map(|(codes, ..)| codes.iter().copied()).collect();
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all);
    }

    #[test]
    fn what_sticks_to_a_context_is_broken_and_what_is_unknown_too() {
        let sticky = [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY,
            CUresult::CUDA_ERROR_UNKNOWN,
        ];
        for code in sticky {
            assert_eq!(judge(code as u32).0, DeviceErrorKind::Broken, "{code:?}");
        }
        assert_eq!(judge(77_777).0, DeviceErrorKind::Broken);
    }

    #[test]
    fn each_kind_says_what_to_do() {
        let kinds = [
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, DeviceErrorKind::NoMemory),
            (CUresult::CUDA_ERROR_OPERATING_SYSTEM, DeviceErrorKind::NoMemory),
            (CUresult::CUDA_ERROR_NO_DEVICE, DeviceErrorKind::Absent),
            (CUresult::CUDA_ERROR_STUB_LIBRARY, DeviceErrorKind::Absent),
            (CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, DeviceErrorKind::Absent),
            (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, DeviceErrorKind::Unsupported),
            (CUresult::CUDA_ERROR_NOT_SUPPORTED, DeviceErrorKind::Unsupported),
            (CUresult::CUDA_ERROR_INVALID_VALUE, DeviceErrorKind::Invalid),
            (CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, DeviceErrorKind::Invalid),
            (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, DeviceErrorKind::Invalid),
        ];
        for (code, kind) in kinds {
            assert_eq!(judge(code as u32).0, kind, "{code:?}");
        }
    }
}
