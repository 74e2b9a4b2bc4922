//! libfabric's types, as far as we use them. Owns: that each has the layout of libfabric's headers. Must not
//! know: what they are used for.
//!
//! Taken from `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_eq.h`, `fi_rma.h` of libfabric 1.17, whose
//! functions are found by the version of the interface that has this layout (`FABRIC_1.3`, `FABRIC_1.1`); newer
//! libraries, 2.x included, keep these. Their structures only grow at the end. So those that we fill have room
//! behind them (`later`, zeros), and tables of functions say how many they have: one is used only if it lies
//! inside.

use std::ffi::{c_char, c_int, c_void};

/// `FI_VERSION`: the version of the interface whose meaning we ask for.
pub(super) const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

pub(super) const FI_MSG: u64 = 1 << 1;
pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_READ: u64 = 1 << 8;
pub(super) const FI_WRITE: u64 = 1 << 9;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_TRANSMIT: u64 = 1 << 11;
pub(super) const FI_REMOTE_READ: u64 = 1 << 12;
pub(super) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const FI_COMPLETION: u64 = 1 << 24;
/// The bytes are in the target's memory, not merely on their way.
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const FI_SOURCE: u64 = 1 << 57;
/// Registers a dma-buf. Since 1.20.
pub(super) const FI_MR_DMABUF: u64 = 1 << 40;
pub(super) const FI_CONTEXT: u64 = 1 << 59;
pub(super) const FI_CONTEXT2: u64 = 1 << 52;

pub(super) const FI_MR_LOCAL: c_int = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;

pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_THREAD_SAFE: c_int = 1;
pub(super) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(super) const FI_WAIT_NONE: c_int = 0;
pub(super) const FI_WAIT_UNSPEC: c_int = 1;
pub(super) const FI_AV_UNSPEC: c_int = 0;
/// Command of `control`: the endpoint goes into use.
pub(super) const FI_ENABLE: c_int = 6;

/// libfabric's own errors, beside errno's.
pub(super) const FI_EAVAIL: c_int = 259;

#[repr(C)]
pub(super) struct FiFid {
    pub(super) class: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *const FiOps,
}

#[repr(C)]
pub(super) struct FiOps {
    pub(super) size: usize,
    pub(super) close: Option<unsafe extern "C" fn(*mut FiFid) -> c_int>,
    pub(super) bind: Option<unsafe extern "C" fn(*mut FiFid, *mut FiFid, u64) -> c_int>,
    pub(super) control: Option<unsafe extern "C" fn(*mut FiFid, c_int, *mut c_void) -> c_int>,
    pub(super) ops_open: usize,
    pub(super) tostr: usize,
    pub(super) ops_set: usize,
}

#[repr(C)]
pub(super) struct FiInfo {
    pub(super) next: *mut FiInfo,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut FiFid,
    pub(super) tx_attr: *mut FiTxAttr,
    pub(super) rx_attr: *mut c_void,
    pub(super) ep_attr: *mut FiEpAttr,
    pub(super) domain_attr: *mut FiDomainAttr,
    pub(super) fabric_attr: *mut FiFabricAttr,
    pub(super) nic: *mut c_void,
}

#[repr(C)]
pub(super) struct FiTxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) inject_size: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
    pub(super) rma_iov_limit: usize,
    pub(super) tclass: u32,
}

#[repr(C)]
pub(super) struct FiEpAttr {
    pub(super) kind: c_int,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
    pub(super) rest: [usize; 9],
}

#[repr(C)]
pub(super) struct FiDomainAttr {
    pub(super) domain: *mut FiDomain,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    pub(super) av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) rest: [usize; 18],
}

#[repr(C)]
pub(super) struct FiFabricAttr {
    pub(super) fabric: *mut FiFabric,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

#[repr(C)]
pub(super) struct FiFabric {
    pub(super) fid: FiFid,
    pub(super) ops: *const FiFabricOps,
    pub(super) api_version: u32,
}

#[repr(C)]
pub(super) struct FiFabricOps {
    pub(super) size: usize,
    pub(super) domain:
        Option<unsafe extern "C" fn(*mut FiFabric, *mut FiInfo, *mut *mut FiDomain, *mut c_void) -> c_int>,
    pub(super) rest: [usize; 5],
}

#[repr(C)]
pub(super) struct FiDomain {
    pub(super) fid: FiFid,
    pub(super) ops: *const FiDomainOps,
    pub(super) mr: *const FiMrOps,
}

#[repr(C)]
pub(super) struct FiDomainOps {
    pub(super) size: usize,
    pub(super) av_open:
        Option<unsafe extern "C" fn(*mut FiDomain, *mut FiAvAttr, *mut *mut FiAv, *mut c_void) -> c_int>,
    pub(super) cq_open:
        Option<unsafe extern "C" fn(*mut FiDomain, *mut FiCqAttr, *mut *mut FiCq, *mut c_void) -> c_int>,
    pub(super) endpoint:
        Option<unsafe extern "C" fn(*mut FiDomain, *mut FiInfo, *mut *mut FiEndpoint, *mut c_void) -> c_int>,
    pub(super) rest: [usize; 8],
}

/// `fi_mr_reg`: domain, memory, length, access, offset, the key asked for, flags, result, context.
pub(super) type FiRegister = unsafe extern "C" fn(
    *mut FiFid,
    *const c_void,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut FiMr,
    *mut c_void,
) -> c_int;

#[repr(C)]
pub(super) struct FiMrOps {
    pub(super) size: usize,
    pub(super) reg: Option<FiRegister>,
    pub(super) regv: usize,
    pub(super) regattr:
        Option<unsafe extern "C" fn(*mut FiFid, *const FiMrAttr, u64, *mut *mut FiMr) -> c_int>,
}

#[repr(C)]
pub(super) struct FiMr {
    pub(super) fid: FiFid,
    pub(super) desc: *mut c_void,
    pub(super) key: u64,
}

#[repr(C)]
pub(super) struct FiMrAttr {
    /// With [`FI_MR_DMABUF`], else a list of addresses, which we never use.
    pub(super) dmabuf: *const FiMrDmabuf,
    pub(super) iov_count: usize,
    pub(super) access: u64,
    pub(super) offset: u64,
    pub(super) requested_key: u64,
    pub(super) context: *mut c_void,
    pub(super) auth_key_size: usize,
    pub(super) auth_key: *mut u8,
    pub(super) iface: c_int,
    pub(super) device: u64,
    pub(super) later: [usize; 8],
}

/// `struct fi_mr_dmabuf`, since 1.20.
#[repr(C)]
pub(super) struct FiMrDmabuf {
    pub(super) fd: c_int,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) base_addr: *mut c_void,
}

#[repr(C)]
pub(super) struct FiAvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
    pub(super) later: [usize; 4],
}

#[repr(C)]
pub(super) struct FiAv {
    pub(super) fid: FiFid,
    pub(super) ops: *const FiAvOps,
}

#[repr(C)]
pub(super) struct FiAvOps {
    pub(super) size: usize,
    pub(super) insert:
        Option<unsafe extern "C" fn(*mut FiAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int>,
    pub(super) rest: [usize; 6],
}

#[repr(C)]
pub(super) struct FiCqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
    pub(super) later: [usize; 4],
}

#[repr(C)]
pub(super) struct FiCq {
    pub(super) fid: FiFid,
    pub(super) ops: *const FiCqOps,
}

#[repr(C)]
pub(super) struct FiCqOps {
    pub(super) size: usize,
    pub(super) read: Option<unsafe extern "C" fn(*mut FiCq, *mut c_void, usize) -> isize>,
    pub(super) readfrom: usize,
    pub(super) readerr: Option<unsafe extern "C" fn(*mut FiCq, *mut FiCqError, u64) -> isize>,
    pub(super) sread:
        Option<unsafe extern "C" fn(*mut FiCq, *mut c_void, usize, *const c_void, c_int) -> isize>,
    pub(super) sreadfrom: usize,
    pub(super) signal: Option<unsafe extern "C" fn(*mut FiCq) -> c_int>,
    pub(super) strerror: usize,
}

/// `struct fi_cq_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FiCqEntry {
    pub(super) context: *mut c_void,
}

/// `struct fi_cq_err_entry`.
#[repr(C)]
pub(super) struct FiCqError {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
    pub(super) later: [usize; 4],
}

#[repr(C)]
pub(super) struct FiEndpoint {
    pub(super) fid: FiFid,
    pub(super) ops: *const c_void,
    pub(super) cm: *const FiCmOps,
    pub(super) msg: *const c_void,
    pub(super) rma: *const FiRmaOps,
    pub(super) rest: [usize; 3],
}

#[repr(C)]
pub(super) struct FiCmOps {
    pub(super) size: usize,
    pub(super) setname: usize,
    pub(super) getname: Option<unsafe extern "C" fn(*mut FiFid, *mut c_void, *mut usize) -> c_int>,
    pub(super) rest: [usize; 7],
}

#[repr(C)]
pub(super) struct FiRmaOps {
    pub(super) size: usize,
    pub(super) read: usize,
    pub(super) readv: usize,
    pub(super) readmsg: Option<unsafe extern "C" fn(*mut FiEndpoint, *const FiMsgRma, u64) -> isize>,
    pub(super) write: usize,
    pub(super) writev: usize,
    pub(super) writemsg: Option<unsafe extern "C" fn(*mut FiEndpoint, *const FiMsgRma, u64) -> isize>,
    pub(super) rest: [usize; 3],
}

/// `struct fi_msg_rma`.
#[repr(C)]
pub(super) struct FiMsgRma {
    pub(super) msg_iov: *const libc::iovec,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) rma_iov: *const FiRmaIov,
    pub(super) rma_iov_count: usize,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `struct fi_rma_iov`.
#[repr(C)]
pub(super) struct FiRmaIov {
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) key: u64,
}

/// `struct fi_context2`: room that a provider may ask for while an operation is under way.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct FiContext {
    pub(super) internal: [usize; 8],
}

/// The function of an operations table, if the table is there, is that long, and has it.
///
/// `function!(table, Table, field)` is an `Option`; it reads through raw pointers, so it stands in `unsafe`.
macro_rules! function {
    ($table:expr, $type:ty, $field:ident) => {{
        let table: *const $type = $table;
        if table.is_null() || (*table).size <= std::mem::offset_of!($type, $field) {
            None
        } else {
            (*table).$field
        }
    }};
}
pub(super) use function;
