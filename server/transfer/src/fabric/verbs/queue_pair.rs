//! One reliable connection: a queue pair with the completion queue that is its own. Owns: its states, handing
//! over work requests, taking completions. Must not know: operations, whose end it is.
//!
//! ```text
//! RESET --open--> INIT --connect--> RTR --> RTS --failure--> ERR
//!                                                  any --destroy--> gone
//! ```
//!
//! The server's end lets nobody touch anything: its queue pair allows no remote access at all.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::address::VerbsAddress;
use super::device::{ProtectionDomain, last_error, words};
use super::sys::{
    self, IbvAhAttr, IbvCq, IbvGid, IbvGlobalRoute, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr,
    IbvSendRequest, IbvSge, IbvWc,
};
use crate::fabric::contract::OpenError;
use crate::limits::{
    QUEUE_PAIR_HOPS_MAX, QUEUE_PAIR_NOT_READY_RETRIES, QUEUE_PAIR_NOT_READY_TIMER, QUEUE_PAIR_RETRIES,
    QUEUE_PAIR_TIMEOUT, RAIL_BATCH_MAX,
};

/// What peers may do through a queue pair, beside what each registration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairSide {
    /// Nothing: the server.
    Initiator,
    /// Read and write what was lent: the client.
    Target,
}

/// One remote operation.
#[derive(Debug)]
pub(super) struct VerbsRequest {
    pub(super) name: u64,
    /// [`sys::IBV_WR_RDMA_READ`] or [`sys::IBV_WR_RDMA_WRITE`].
    pub(super) opcode: c_int,
    pub(super) local: NonNull<u8>,
    pub(super) bytes: u32,
    pub(super) local_key: u32,
    pub(super) remote: u64,
    pub(super) remote_key: u32,
}

/// A queue pair. Dropped, it is destroyed, whatever is under way.
#[derive(Debug)]
pub(super) struct QueuePair {
    domain: Arc<ProtectionDomain>,
    /// None: destroyed.
    qp: Option<NonNull<IbvQp>>,
    cq: NonNull<IbvCq>,
    packet: u32,
}

// SAFETY: libibverbs' functions may be called by any thread on any of its objects.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair that is ready to be connected.
    ///
    /// # Errors
    /// `Failed`, with the system's words.
    pub(super) fn open(domain: &Arc<ProtectionDomain>, side: PairSide) -> Result<Self, OpenError> {
        let (device, api) = (&domain.device, &domain.device.api);
        let requests = match side {
            PairSide::Initiator => device.requests_max,
            PairSide::Target => 1,
        };
        let requests = u32::try_from(requests).unwrap_or(1);
        let entries = c_int::try_from(requests).unwrap_or(1);
        // SAFETY: the device is open; no channel and no context are asked for.
        let cq = unsafe { (api.create_cq)(device.context(), entries, null_mut(), null_mut(), 0) };
        let cq = NonNull::new(cq)
            .ok_or_else(|| OpenError::Failed(format!("a completion queue: {}", last_error())))?;
        let mut attr = IbvQpInitAttr {
            qp_context: null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: null_mut(),
            cap: IbvQpCap {
                max_send_wr: requests,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the completion queue are there, `attr` is whole.
        let Some(qp) = NonNull::new(unsafe { (api.create_qp)(domain.as_ptr(), &raw mut attr) }) else {
            let why = last_error();
            // SAFETY: made above, and nothing has it.
            unsafe { (api.destroy_cq)(cq.as_ptr()) };
            return Err(OpenError::Failed(format!("a queue pair: {why}")));
        };
        let mut packet = [0; 4];
        let drawn = rustix::rand::getrandom(&mut packet[..3], rustix::rand::GetRandomFlags::empty());
        let pair = Self { domain: Arc::clone(domain), qp: Some(qp), cq, packet: u32::from_le_bytes(packet) };
        drawn.map_err(|errno| OpenError::Failed(errno.to_string()))?;
        pair.initialise(side)?;
        Ok(pair)
    }

    fn initialise(&self, side: PairSide) -> Result<(), OpenError> {
        let access = match side {
            PairSide::Initiator => 0,
            PairSide::Target => sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE,
        };
        let attr = IbvQpAttr {
            qp_state: sys::IBV_QPS_INIT,
            port_num: self.domain.device.port,
            qp_access_flags: access.unsigned_abs(),
            ..IbvQpAttr::default()
        };
        let mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.modify("INIT", attr, mask)
    }

    /// Where the peer reaches it.
    pub(super) fn address(&self) -> VerbsAddress {
        let device = &self.domain.device;
        VerbsAddress {
            link: if device.attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET { 2 } else { 1 },
            mtu: u8::try_from(device.attr.active_mtu).unwrap_or(1),
            // SAFETY: the queue pair is there.
            queue_pair: self.qp.map_or(0, |qp| unsafe { (*qp.as_ptr()).qp_num }),
            packet: self.packet,
            lid: device.attr.lid,
            gid: device.gid,
            reads_out: device.reads_out,
            reads_in: device.reads_in,
        }
    }

    /// Connects it: from then on it carries what either end begins.
    ///
    /// # Errors
    /// `BadAddress`: the peer's address is of another kind of network. `Failed`: the NIC refuses it.
    pub(super) fn connect(&self, peer: &VerbsAddress) -> Result<(), OpenError> {
        let (own, device) = (self.address(), &self.domain.device);
        peer.like(&own)?;
        let is_global = u8::from(peer.is_global(&own));
        let route = IbvGlobalRoute {
            dgid: IbvGid(peer.gid),
            flow_label: 0,
            sgid_index: device.gid_index,
            hop_limit: QUEUE_PAIR_HOPS_MAX,
            traffic_class: 0,
        };
        let ah_attr = IbvAhAttr {
            grh: route,
            dlid: peer.lid,
            is_global,
            port_num: device.port,
            ..IbvAhAttr::default()
        };
        let ready = IbvQpAttr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: c_int::from(peer.mtu.min(own.mtu)),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.packet,
            max_dest_rd_atomic: own.reads_in.min(peer.reads_out).max(1),
            min_rnr_timer: QUEUE_PAIR_NOT_READY_TIMER,
            ah_attr,
            ..IbvQpAttr::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify("RTR", ready, mask)?;
        let sending = IbvQpAttr {
            qp_state: sys::IBV_QPS_RTS,
            timeout: QUEUE_PAIR_TIMEOUT,
            retry_cnt: QUEUE_PAIR_RETRIES,
            rnr_retry: QUEUE_PAIR_NOT_READY_RETRIES,
            sq_psn: own.packet,
            max_rd_atomic: own.reads_out.min(peer.reads_in).max(1),
            ..IbvQpAttr::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("RTS", sending, mask)
    }

    fn modify(&self, state: &str, mut attr: IbvQpAttr, mask: c_int) -> Result<(), OpenError> {
        let Some(qp) = self.qp else { return Err(OpenError::Failed("the queue pair is gone".to_owned())) };
        // SAFETY: the queue pair is there, `attr` is whole.
        match unsafe { (self.domain.device.api.modify_qp)(qp.as_ptr(), &raw mut attr, mask) } {
            0 => Ok(()),
            code => Err(OpenError::Failed(format!("bringing a queue pair to {state}: {}", words(code)))),
        }
    }

    /// Whether it failed: a peer's request was refused, or the NIC broke.
    pub(super) fn is_in_error(&self) -> bool {
        let Some(qp) = self.qp else { return true };
        let mut attr = IbvQpAttr::default();
        let mut made = IbvQpInitAttr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: IbvQpCap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let query = self.domain.device.api.query_qp;
        // SAFETY: the queue pair is there; both have room for the answer.
        let code = unsafe { query(qp.as_ptr(), &raw mut attr, sys::IBV_QP_STATE, &raw mut made) };
        code == 0 && attr.qp_state == sys::IBV_QPS_ERR
    }

    /// Hands a chain of requests over, with one call; gives how many were taken. Fewer, without an error: its
    /// queue is full.
    ///
    /// # Errors
    /// How many were taken, and the system's words: it takes no more.
    ///
    /// # Safety
    /// The local memory stays mapped and registered until each request's completion came or the queue pair is
    /// destroyed.
    pub(super) unsafe fn give(&self, requests: &[VerbsRequest]) -> Result<usize, (usize, String)> {
        let Some(qp) = self.qp else { return Err((0, "the queue pair is gone".to_owned())) };
        let count = requests.len().min(RAIL_BATCH_MAX);
        let mut elements = [IbvSge::default(); RAIL_BATCH_MAX];
        for (element, request) in elements.iter_mut().zip(requests) {
            let addr = request.local.as_ptr().addr() as u64;
            *element = IbvSge { addr, length: request.bytes, lkey: request.local_key };
        }
        let empty = IbvSendRequest {
            wr_id: 0,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 1,
            opcode: 0,
            send_flags: sys::IBV_SEND_SIGNALED,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            rest_of_unions: [0; 9],
        };
        let mut chain = [empty; RAIL_BATCH_MAX];
        let (first, element) = (chain.as_mut_ptr(), elements.as_mut_ptr());
        for (index, request) in requests.iter().take(count).enumerate() {
            let next = if index + 1 < count { first.wrapping_add(index + 1) } else { null_mut() };
            let filled = IbvSendRequest {
                wr_id: request.name,
                next,
                sg_list: element.wrapping_add(index),
                opcode: request.opcode,
                remote_addr: request.remote,
                rkey: request.remote_key,
                ..empty
            };
            // SAFETY: `index` is below the length of the chain, which only this pointer is used for from here on.
            unsafe { first.wrapping_add(index).write(filled) };
        }
        if count == 0 {
            return Ok(0);
        }
        let mut bad = null_mut();
        // SAFETY: an open device has its table of functions.
        let post = unsafe { (*(*qp.as_ptr()).context).ops.post_send };
        let Some(post) = post else { return Err((0, "the device posts nothing".to_owned())) };
        // SAFETY: the queue pair is there; the library copies the chain before it returns; the caller vouches
        // for the memory.
        match unsafe { post(qp.as_ptr(), first, &raw mut bad) } {
            0 => Ok(count),
            code => {
                let taken = bad.addr().saturating_sub(first.addr()) / size_of::<IbvSendRequest>();
                let taken = if bad.is_null() { 0 } else { taken.min(count) };
                if code.abs() == libc::ENOMEM { Ok(taken) } else { Err((taken, words(code).to_string())) }
            }
        }
    }

    /// Calls `each` with the name and status of what completed since the last call.
    ///
    /// # Errors
    /// The completion queue is broken: the system's words.
    pub(super) fn completions(&self, mut each: impl FnMut(u64, c_int)) -> Result<(), String> {
        // SAFETY: an open device has its table of functions.
        let poll = unsafe { (*(*self.cq.as_ptr()).context).ops.poll_cq };
        let Some(poll) = poll else { return Err("the device polls nothing".to_owned()) };
        loop {
            let mut entries = [IbvWc::default(); RAIL_BATCH_MAX];
            let room = c_int::try_from(entries.len()).unwrap_or(1);
            // SAFETY: the completion queue is there, and there is room for so many.
            let count = unsafe { poll(self.cq.as_ptr(), room, entries.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else { return Err(words(count).to_string()) };
            entries.iter().take(count).for_each(|entry| each(entry.wr_id, entry.status));
            if count < entries.len() {
                return Ok(());
            }
        }
    }

    /// Destroys it: nothing that it was given touches memory any more. Twice is once.
    ///
    /// # Errors
    /// The system's words: it is there still.
    pub(super) fn destroy(&mut self) -> Result<(), String> {
        let Some(qp) = self.qp else { return Ok(()) };
        // SAFETY: ours since `open`, and destroyed once.
        match unsafe { (self.domain.device.api.destroy_qp)(qp.as_ptr()) } {
            0 => {
                self.qp = None;
                Ok(())
            }
            code => Err(words(code).to_string()),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // The completion queue of a queue pair that is not destroyed stays with the kernel, as that does.
        if self.destroy().is_ok() {
            // SAFETY: ours since `open`; its queue pair is gone.
            unsafe { (self.domain.device.api.destroy_cq)(self.cq.as_ptr()) };
        }
    }
}
