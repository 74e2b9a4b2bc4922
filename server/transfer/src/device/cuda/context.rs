//! The primary context of a device. Owns: keeping it, and being in it for the length of a call. Must not know: what the call is.
//!
//! An engine (PyTorch, our own demo) uses the primary context as well: memory and streams are then the same for both, and no
//! second context takes memory or time slices. Whatever context a thread is in when it calls us, it is in afterwards.

use std::marker::PhantomData;

use cudarc::driver::sys;

use super::api::Api;
use crate::device::driver::DeviceError;

/// A device's primary context, kept alive.
pub(super) struct Context {
    pub(super) api: &'static Api,
    pub(super) device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context handle is an opaque name; the driver's functions may be called with it from any thread at any time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context; the first user of a process makes it.
    pub(super) fn retain(api: &'static Api, device: sys::CUdevice) -> Result<Context, DeviceError> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the device was named by the driver; `context` has room for a handle.
        let code = unsafe { (api.primary_retain)(&raw mut context, device) };
        api.check(code, "opening the device's primary context")?;
        Ok(Context { api, device, context })
    }

    /// Makes this context the thread's for as long as the answer lives.
    ///
    /// Also relaxes the thread's capture mode: while any thread captures a graph in CUDA's default mode (as PyTorch does), an
    /// event query or an allocation anywhere in the process would void that capture. Ours have nothing to do with it.
    pub(super) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        let mut found = std::ptr::null_mut();
        // SAFETY: `found` has room for a handle.
        let code = unsafe { (self.api.context_current)(&raw mut found) };
        self.api.check(code, "asking for the thread's context")?;
        let pushed = found != self.context;
        if pushed {
            // SAFETY: the context is retained.
            let code = unsafe { (self.api.context_push)(self.context) };
            self.api.check(code, "entering the device's primary context")?;
        }
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is read and written; it stays one of the three modes that the driver knows.
        let relaxed = unsafe { (self.api.capture_mode)(&raw mut mode) } == 0;
        Ok(Entered { context: self, pushed, mode: relaxed.then_some(mode), stays: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nobody is left to tell of a failure: it means that the driver shut down first, and the context with it.
        // SAFETY: retained once, released once.
        unsafe { (self.api.primary_release)(self.device) };
    }
}

/// The thread is in the context; dropping this takes it back to where it was.
pub(super) struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
    /// The thread's capture mode before, if it was changed.
    mode: Option<sys::CUstreamCaptureMode>,
    /// A thread's context is its own: this value stays on the thread.
    stays: PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let api = self.context.api;
        if let Some(mut mode) = self.mode {
            // SAFETY: the mode that the driver itself handed out.
            unsafe { (api.capture_mode)(&raw mut mode) };
        }
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pushed by `enter` on this thread (this value cannot leave it), popped once.
            unsafe { (api.context_pop)(&raw mut popped) };
        }
    }
}
