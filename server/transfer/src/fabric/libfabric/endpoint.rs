//! One endpoint, with the completion queue and the address table that are its own. Owns: opening and closing
//! them, the calls on them. Must not know: operations, whose end it is.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use super::address::LibfabricAddress;
use super::api::FabricApi;
use super::device::{ProviderDomain, close};
use super::sys::{self, FiAv, FiAvAttr, FiCq, FiCqAttr, FiCqEntry, FiCqError, FiMsgRma, FiRmaIov, function};
use crate::fabric::contract::OpenError;
use crate::fabric::operation::Direction;
use crate::limits::{RAIL_ADDRESS_BYTES_MAX, RAIL_BATCH_MAX};

/// A peer's place in an endpoint's address table.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerPlace(u64);

/// One remote operation.
#[derive(Debug)]
pub(super) struct RmaRequest {
    pub(super) direction: Direction,
    pub(super) local: NonNull<u8>,
    pub(super) bytes: usize,
    /// Names the local memory to the provider.
    pub(super) desc: *mut c_void,
    pub(super) peer: PeerPlace,
    pub(super) remote: u64,
    pub(super) key: u64,
    /// Comes back with the completion.
    pub(super) context: *mut c_void,
}

/// What a completion queue had.
#[derive(Debug)]
pub(super) enum CqEvent {
    Done(*mut c_void),
    /// An operation failed, by this number.
    Failed(*mut c_void, i64),
}

/// An open endpoint. Dropped, it is closed, whatever is under way.
#[derive(Debug)]
pub(super) struct Endpoint {
    device: Arc<ProviderDomain>,
    /// None: closed.
    ep: Option<NonNull<sys::FiEndpoint>>,
    cq: NonNull<FiCq>,
    av: NonNull<FiAv>,
    can_wait: bool,
}

// SAFETY: its domain was opened for use by any thread.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint that takes `operations_max` at a time; one that is to wait for completions without
    /// polling says so, and does where the provider can.
    ///
    /// # Errors
    /// `Failed`, with the library's words.
    pub(super) fn open(
        device: &Arc<ProviderDomain>,
        operations_max: usize,
        waits: bool,
    ) -> Result<Self, OpenError> {
        let failed = |tried: &str, code: c_int| {
            OpenError::Failed(format!(
                "{tried} of provider {}: {}",
                device.provider,
                device.api.words(code.into())
            ))
        };
        let av = open_av(device).map_err(|code| failed("the address table", code))?;
        let waiting = if waits { open_cq(device, operations_max, sys::FI_WAIT_UNSPEC).ok() } else { None };
        let cq = match waiting {
            Some(cq) => Ok(cq),
            None => open_cq(device, operations_max, sys::FI_WAIT_NONE),
        };
        let cq = cq.map_err(|code| {
            close(av.cast());
            failed("the completion queue", code)
        })?;
        let mut endpoint = Self { device: Arc::clone(device), ep: None, cq, av, can_wait: waiting.is_some() };
        endpoint.enable().map_err(|code| failed("the endpoint", code))?;
        Ok(endpoint)
    }

    fn enable(&mut self) -> Result<(), c_int> {
        let (domain, mut ep) = (self.device.domain(), null_mut());
        // SAFETY: an open domain has its table of functions.
        let open = unsafe { function!((*domain).ops, sys::FiDomainOps, endpoint) }.ok_or(-libc::ENOSYS)?;
        // SAFETY: domain and description belong together; `ep` has room for the result.
        let code = unsafe { open(domain, self.device.info(), &raw mut ep, null_mut()) };
        let ep = NonNull::new(ep).filter(|_| code == 0).ok_or(code)?;
        self.ep = Some(ep);
        // SAFETY: an open endpoint has its table of functions.
        let bind = unsafe { function!((*ep.as_ptr()).fid.ops, sys::FiOps, bind) }.ok_or(-libc::ENOSYS)?;
        // SAFETY: as above.
        let control =
            unsafe { function!((*ep.as_ptr()).fid.ops, sys::FiOps, control) }.ok_or(-libc::ENOSYS)?;
        // SAFETY: all three are open and of one domain; table and queue outlive the endpoint, see `close`.
        let codes = unsafe {
            let fid = ep.as_ptr().cast();
            let bound = bind(fid, self.av.as_ptr().cast(), 0);
            let queued = bind(fid, self.cq.as_ptr().cast(), sys::FI_TRANSMIT | sys::FI_RECV);
            [bound, queued, control(fid, sys::FI_ENABLE, null_mut())]
        };
        codes.into_iter().find(|code| *code != 0).map_or(Ok(()), Err)
    }

    pub(super) fn api(&self) -> &FabricApi {
        &self.device.api
    }

    /// Whether `wait` sleeps until something happens.
    pub(super) fn can_wait(&self) -> bool {
        self.can_wait
    }

    /// Where peers reach it.
    ///
    /// # Errors
    /// `Failed`, with the library's words.
    pub(super) fn address(&self) -> Result<LibfabricAddress, OpenError> {
        let failed =
            |code: c_int| OpenError::Failed(format!("its address: {}", self.device.api.words(code.into())));
        let ep = self.ep.ok_or_else(|| failed(-libc::ENOTCONN))?;
        // SAFETY: an open endpoint has its table of functions.
        let getname = unsafe { function!((*ep.as_ptr()).cm, sys::FiCmOps, getname) };
        let getname = getname.ok_or_else(|| failed(-libc::ENOSYS))?;
        let mut bytes = vec![0_u8; RAIL_ADDRESS_BYTES_MAX];
        let mut length = bytes.len();
        // SAFETY: the endpoint is open, and the buffer is as long as it says.
        let code = unsafe { getname(ep.as_ptr().cast(), bytes.as_mut_ptr().cast(), &raw mut length) };
        if code != 0 {
            return Err(failed(code));
        }
        bytes.truncate(length);
        // SAFETY: the description is the device's, which lives as long as this.
        let format = unsafe { (*self.device.info()).addr_format };
        Ok(LibfabricAddress { provider: self.device.provider.clone(), format, address: bytes })
    }

    /// Learns a peer's address.
    ///
    /// # Errors
    /// `BadAddress`: the provider cannot use it.
    pub(super) fn learn(&self, peer: &LibfabricAddress) -> Result<PeerPlace, OpenError> {
        peer.like(&self.address()?)?;
        let refused = || OpenError::BadAddress(format!("provider {} refuses it", self.device.provider));
        // SAFETY: an open address table has its table of functions.
        let insert =
            unsafe { function!((*self.av.as_ptr()).ops, sys::FiAvOps, insert) }.ok_or_else(refused)?;
        let mut place = 0;
        // SAFETY: the table is open; the address has the length of the provider's own (`like`), `place` has room
        // for the one result.
        let learnt = unsafe {
            insert(self.av.as_ptr(), peer.address.as_ptr().cast(), 1, &raw mut place, 0, null_mut())
        };
        if learnt == 1 { Ok(PeerPlace(place)) } else { Err(refused()) }
    }

    /// Begins an operation; false: the provider has no room just now. A write ends when its bytes are in the
    /// peer's memory: that is said with each operation, because some providers ignore it as a default.
    ///
    /// # Errors
    /// The number that the library gives.
    ///
    /// # Safety
    /// The local memory stays mapped, and the context is not used otherwise, until its event came or the
    /// endpoint is closed.
    pub(super) unsafe fn begin(&self, request: &RmaRequest) -> Result<bool, i64> {
        let ep = self.ep.ok_or(-i64::from(libc::ENOTCONN))?;
        let iov = libc::iovec { iov_base: request.local.as_ptr().cast(), iov_len: request.bytes };
        let remote = FiRmaIov { addr: request.remote, len: request.bytes, key: request.key };
        let mut desc = request.desc;
        let message = FiMsgRma {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: request.peer.0,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: request.context,
            data: 0,
        };
        // SAFETY: an open endpoint has its table of functions.
        let rma = unsafe {
            match request.direction {
                Direction::Read => function!((*ep.as_ptr()).rma, sys::FiRmaOps, readmsg),
                Direction::Write => function!((*ep.as_ptr()).rma, sys::FiRmaOps, writemsg),
            }
        };
        let flags = match request.direction {
            Direction::Read => sys::FI_COMPLETION,
            Direction::Write => sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE,
        };
        let call = rma.ok_or(-i64::from(libc::ENOSYS))?;
        // SAFETY: the endpoint is open; the library copies the lists before it returns; the caller vouches for
        // the memory.
        match unsafe { call(ep.as_ptr(), &raw const message, flags) } as i64 {
            0 => Ok(true),
            code if code == -i64::from(libc::EAGAIN) => Ok(false),
            code => Err(code),
        }
    }

    /// What happened since the last call, for which the provider is also given the thread to work on.
    ///
    /// # Errors
    /// The number that the library gives: the queue is broken.
    pub(super) fn events(&self, into: &mut Vec<CqEvent>) -> Result<(), i64> {
        // SAFETY: an open queue has its table of functions.
        let read = unsafe { function!((*self.cq.as_ptr()).ops, sys::FiCqOps, read) };
        let read = read.ok_or(-i64::from(libc::ENOSYS))?;
        loop {
            let mut entries = [FiCqEntry { context: null_mut() }; RAIL_BATCH_MAX];
            // SAFETY: the queue was opened with entries of this kind, and there is room for so many.
            let count = unsafe { read(self.cq.as_ptr(), entries.as_mut_ptr().cast(), entries.len()) } as i64;
            if !self.take(count, &entries, into)? {
                return Ok(());
            }
        }
    }

    /// As `events`, but sleeps until something happens or the time is over, where the provider can.
    ///
    /// # Errors
    /// As `events`.
    pub(super) fn wait(&self, pause: Duration, into: &mut Vec<CqEvent>) -> Result<(), i64> {
        // SAFETY: an open queue has its table of functions.
        let sread = unsafe { function!((*self.cq.as_ptr()).ops, sys::FiCqOps, sread) };
        let sread = sread.ok_or(-i64::from(libc::ENOSYS))?;
        let mut entries = [FiCqEntry { context: null_mut() }; RAIL_BATCH_MAX];
        let pause_ms = c_int::try_from(pause.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: as in `events`; the queue was opened to be waited for, without a condition.
        let count =
            unsafe { sread(self.cq.as_ptr(), entries.as_mut_ptr().cast(), entries.len(), null(), pause_ms) }
                as i64;
        self.take(count, &entries, into).map(|_| ())
    }

    /// What a read of the queue gave; whether to read again.
    fn take(&self, count: i64, entries: &[FiCqEntry], into: &mut Vec<CqEvent>) -> Result<bool, i64> {
        if let Ok(count) = usize::try_from(count) {
            into.extend(entries.iter().take(count).map(|entry| CqEvent::Done(entry.context)));
            return Ok(count > 0);
        }
        if count == -i64::from(sys::FI_EAVAIL) {
            into.push(self.failure()?);
            return Ok(true);
        }
        // ECANCELED: woken by a signal of ours or of the system, with nothing to tell.
        let nothing = [libc::EAGAIN, libc::EINTR, libc::ETIMEDOUT, libc::ECANCELED];
        if nothing.iter().any(|code| count == -i64::from(*code)) { Ok(false) } else { Err(count) }
    }

    fn failure(&self) -> Result<CqEvent, i64> {
        // SAFETY: an open queue has its table of functions.
        let readerr = unsafe { function!((*self.cq.as_ptr()).ops, sys::FiCqOps, readerr) };
        let readerr = readerr.ok_or(-i64::from(libc::ENOSYS))?;
        let mut error = FiCqError {
            context: null_mut(),
            flags: 0,
            len: 0,
            buf: null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
            later: [0; 4],
        };
        // SAFETY: the queue is open, and `error` has the room of this version's entry and more.
        let count = unsafe { readerr(self.cq.as_ptr(), &raw mut error, 0) } as i64;
        if count < 0 { Err(count) } else { Ok(CqEvent::Failed(error.context, error.err.into())) }
    }

    /// Closes the endpoint: what was under way is dropped by the library and touches nothing any more. Twice
    /// is once.
    ///
    /// # Errors
    /// The library's words: it is open still.
    pub(super) fn close(&mut self) -> Result<(), String> {
        let Some(ep) = self.ep else { return Ok(()) };
        match close(ep.cast()) {
            0 => {
                self.ep = None;
                Ok(())
            }
            code => Err(self.device.api.words(code.into())),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Queue and table of an endpoint that does not close stay with the library, as the endpoint does.
        if self.close().is_ok() {
            close(self.cq.cast());
            close(self.av.cast());
        }
    }
}

fn open_av(device: &ProviderDomain) -> Result<NonNull<FiAv>, c_int> {
    let mut attr = FiAvAttr {
        kind: sys::FI_AV_UNSPEC,
        rx_ctx_bits: 0,
        count: 1,
        ep_per_node: 0,
        name: null(),
        map_addr: null_mut(),
        flags: 0,
        later: [0; 4],
    };
    let (domain, mut av) = (device.domain(), null_mut());
    // SAFETY: an open domain has its table of functions.
    let open = unsafe { function!((*domain).ops, sys::FiDomainOps, av_open) }.ok_or(-libc::ENOSYS)?;
    // SAFETY: the domain is open; `av` has room for the result.
    let code = unsafe { open(domain, &raw mut attr, &raw mut av, null_mut()) };
    NonNull::new(av).filter(|_| code == 0).ok_or(code)
}

fn open_cq(device: &ProviderDomain, entries: usize, wait: c_int) -> Result<NonNull<FiCq>, c_int> {
    let mut attr = FiCqAttr {
        size: entries,
        flags: 0,
        format: sys::FI_CQ_FORMAT_CONTEXT,
        wait_obj: wait,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: null_mut(),
        later: [0; 4],
    };
    let (domain, mut cq) = (device.domain(), null_mut());
    // SAFETY: an open domain has its table of functions.
    let open = unsafe { function!((*domain).ops, sys::FiDomainOps, cq_open) }.ok_or(-libc::ENOSYS)?;
    // SAFETY: the domain is open; `cq` has room for the result.
    let code = unsafe { open(domain, &raw mut attr, &raw mut cq, null_mut()) };
    NonNull::new(cq).filter(|_| code == 0).ok_or(code)
}
