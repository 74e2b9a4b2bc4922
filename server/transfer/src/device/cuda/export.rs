//! Device memory for NICs. Owns: whether this device and driver can export it, the export, and what must come between a NIC's
//! writes and the work that reads them. Must not know: NICs.
//!
//! A NIC's writes to a GPU's memory go over PCIe, where they may still be on their way when the NIC says that they are done. Some
//! systems keep them in order by themselves; on others the driver flushes them, which is one read of the GPU.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys;
use sys::CUdevice_attribute as Attribute;

use super::api::Api;
use crate::device::driver::{DeviceAddress, DeviceError, DeviceErrorKind};

/// How memory of a device is exported.
#[derive(Clone, Debug)]
pub(super) enum Exports {
    /// Why it is not.
    No(&'static str),
    /// It is, and NICs' writes are flushed before they are read, or need not be.
    Yes { flush: bool },
}

impl Exports {
    /// What the driver says of a device.
    pub(super) fn of(api: &Api, device: sys::CUdevice) -> Result<Exports, DeviceError> {
        // A driver that does not know the question has no dma-bufs.
        let known = |which| {
            api.attribute(device, which).or_else(|error| match error.kind {
                DeviceErrorKind::Invalid | DeviceErrorKind::Unsupported => Ok(0),
                _ => Err(error),
            })
        };
        if api.memory_export.is_none() {
            return Ok(Exports::No("the CUDA driver exports no memory: install 515 (CUDA 11.7) or later"));
        }
        if known(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? == 0 {
            return Ok(Exports::No(
                "this GPU and driver have no dma-bufs: they need NVIDIA's open kernel modules, Linux 5.12 or later, and a \
                 GPU of the Turing generation or later",
            ));
        }
        let ordering = known(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
        if ordering >= sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as c_int {
            return Ok(Exports::Yes { flush: false });
        }
        let by_host =
            sys::CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as c_int;
        let options = known(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        if options & by_host == 0 || api.flush_writes.is_none() {
            return Ok(Exports::No(
                "a NIC's writes to this GPU arrive in no order, and the driver cannot flush them from the host",
            ));
        }
        Ok(Exports::Yes { flush: true })
    }

    /// Whether memory may be exported at all.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        match self {
            Exports::Yes { .. } => Ok(()),
            Exports::No(why) => Err(DeviceError::new(DeviceErrorKind::Unsupported, *why)),
        }
    }

    /// The dma-buf of allocated memory. The caller is in the context.
    pub(super) fn export(
        &self,
        api: &Api,
        address: DeviceAddress,
        bytes: usize,
    ) -> Result<OwnedFd, DeviceError> {
        self.check()?;
        let Some(export) = api.memory_export else { return Err(no_descriptor()) };
        let mut fd: c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: for this kind of handle a descriptor is written, which `fd` has room for; the driver checks the range.
        let code = unsafe { export((&raw mut fd).cast(), address, bytes, kind, 0) };
        api.check(code, &format!("exporting {bytes} bytes of device memory as a dma-buf"))?;
        if fd < 0 {
            return Err(no_descriptor());
        }
        // SAFETY: the driver made the descriptor for us, and keeps none.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits until what NICs have written is where work finds it. The caller is in the context.
    pub(super) fn flush(&self, api: &Api) -> Result<(), DeviceError> {
        let (Exports::Yes { flush: true }, Some(flush)) = (self, api.flush_writes) else { return Ok(()) };
        let target =
            sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: both are numbers that the driver knows.
        let code = unsafe { flush(target, scope) };
        api.check(code, "flushing what NICs wrote to device memory")
    }
}

fn no_descriptor() -> DeviceError {
    DeviceError::new(DeviceErrorKind::Unsupported, "the CUDA driver exports memory and gives no descriptor")
}
