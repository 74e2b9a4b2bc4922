//! The layouts, beside what a C compiler said of the headers of libfabric 1.17.0 on 64-bit Linux.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};

use super::sys::*;

/// Bytes that we add behind a structure.
const LATER: usize = 4 * 8;

#[test]
fn structures_have_the_sizes_of_the_headers() {
    let sizes = [
        ("fid", size_of::<FiFid>(), 24),
        ("fi_ops", size_of::<FiOps>(), 56),
        ("fi_info", size_of::<FiInfo>(), 120),
        ("fi_tx_attr", size_of::<FiTxAttr>(), 80),
        ("fi_ep_attr", size_of::<FiEpAttr>(), 96),
        ("fi_domain_attr", size_of::<FiDomainAttr>(), 192),
        ("fi_fabric_attr", size_of::<FiFabricAttr>(), 32),
        ("fid_fabric", size_of::<FiFabric>(), 40),
        ("fi_ops_fabric", size_of::<FiFabricOps>(), 56),
        ("fid_domain", size_of::<FiDomain>(), 40),
        ("fi_ops_domain", size_of::<FiDomainOps>(), 96),
        ("fi_ops_mr", size_of::<FiMrOps>(), 32),
        ("fid_mr", size_of::<FiMr>(), 40),
        ("fi_mr_attr", size_of::<FiMrAttr>() - 2 * LATER, 80),
        ("fi_mr_dmabuf", size_of::<FiMrDmabuf>(), 32),
        ("fi_av_attr", size_of::<FiAvAttr>() - LATER, 48),
        ("fid_av", size_of::<FiAv>(), 32),
        ("fi_ops_av", size_of::<FiAvOps>(), 64),
        ("fi_cq_attr", size_of::<FiCqAttr>() - LATER, 40),
        ("fid_cq", size_of::<FiCq>(), 32),
        ("fi_ops_cq", size_of::<FiCqOps>(), 64),
        ("fi_cq_entry", size_of::<FiCqEntry>(), 8),
        ("fi_cq_err_entry", size_of::<FiCqError>() - LATER, 80),
        ("fid_ep", size_of::<FiEndpoint>(), 80),
        ("fi_ops_cm", size_of::<FiCmOps>(), 80),
        ("fi_ops_rma", size_of::<FiRmaOps>(), 80),
        ("fi_msg_rma", size_of::<FiMsgRma>(), 64),
        ("fi_rma_iov", size_of::<FiRmaIov>(), 24),
        ("fi_context2", size_of::<FiContext>(), 64),
    ];
    for (name, ours, theirs) in sizes {
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn fields_lie_where_the_headers_have_them() {
    let places = [
        ("fi_info.src_addr", offset_of!(FiInfo, src_addr), 48),
        ("fi_info.tx_attr", offset_of!(FiInfo, tx_attr), 72),
        ("fi_info.fabric_attr", offset_of!(FiInfo, fabric_attr), 104),
        ("fi_tx_attr.op_flags", offset_of!(FiTxAttr, op_flags), 16),
        ("fi_tx_attr.size", offset_of!(FiTxAttr, size), 48),
        ("fi_ep_attr.max_msg_size", offset_of!(FiEpAttr, max_msg_size), 16),
        ("fi_domain_attr.threading", offset_of!(FiDomainAttr, threading), 16),
        ("fi_domain_attr.mr_mode", offset_of!(FiDomainAttr, mr_mode), 36),
        ("fi_domain_attr.mr_key_size", offset_of!(FiDomainAttr, mr_key_size), 40),
        ("fi_fabric_attr.prov_name", offset_of!(FiFabricAttr, prov_name), 16),
        ("fi_ops_domain.av_open", offset_of!(FiDomainOps, av_open), 8),
        ("fi_ops_domain.cq_open", offset_of!(FiDomainOps, cq_open), 16),
        ("fi_ops_domain.endpoint", offset_of!(FiDomainOps, endpoint), 24),
        ("fi_ops_mr.regattr", offset_of!(FiMrOps, regattr), 24),
        ("fi_mr_attr.iface", offset_of!(FiMrAttr, iface), 64),
        ("fi_mr_attr.device", offset_of!(FiMrAttr, device), 72),
        ("fi_ops_av.insert", offset_of!(FiAvOps, insert), 8),
        ("fi_ops_cq.read", offset_of!(FiCqOps, read), 8),
        ("fi_ops_cq.readerr", offset_of!(FiCqOps, readerr), 24),
        ("fid_ep.cm", offset_of!(FiEndpoint, cm), 32),
        ("fid_ep.rma", offset_of!(FiEndpoint, rma), 48),
        ("fi_ops_cm.getname", offset_of!(FiCmOps, getname), 16),
        ("fi_ops_rma.readmsg", offset_of!(FiRmaOps, readmsg), 24),
        ("fi_ops_rma.writemsg", offset_of!(FiRmaOps, writemsg), 48),
    ];
    for (name, ours, theirs) in places {
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn a_function_is_used_only_if_its_table_is_long_enough() {
    unsafe extern "C" fn signal(_: *mut FiCq) -> c_int {
        0
    }
    let mut table = FiCqOps {
        size: offset_of!(FiCqOps, signal),
        read: None,
        readfrom: 0,
        readerr: None,
        sread: None,
        sreadfrom: 0,
        signal: Some(signal),
        strerror: 0,
    };
    // SAFETY: the table is there.
    assert!(unsafe { function!(&raw const table, FiCqOps, signal) }.is_none(), "an older library's table");
    table.size = size_of::<FiCqOps>();
    // SAFETY: the table is there.
    assert!(unsafe { function!(&raw const table, FiCqOps, signal) }.is_some());
    // SAFETY: a table that is not there is not read.
    assert!(unsafe { function!(std::ptr::null(), FiCqOps, signal) }.is_none());
}
