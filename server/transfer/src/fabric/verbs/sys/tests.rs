//! The layouts, beside what a C compiler said of the headers of rdma-core 44 on 64-bit Linux.

use std::mem::{offset_of, size_of};

use super::*;

#[test]
fn structures_that_we_fill_have_the_sizes_of_the_headers() {
    let sizes = [
        ("ibv_context_ops", size_of::<IbvContextOps>(), 256),
        ("ibv_mr", size_of::<IbvMr>(), 48),
        ("ibv_qp_cap", size_of::<IbvQpCap>(), 20),
        ("ibv_qp_init_attr", size_of::<IbvQpInitAttr>(), 64),
        ("ibv_gid", size_of::<IbvGid>(), 16),
        ("ibv_global_route", size_of::<IbvGlobalRoute>(), 24),
        ("ibv_ah_attr", size_of::<IbvAhAttr>(), 32),
        ("ibv_qp_attr", size_of::<IbvQpAttr>(), 144),
        ("ibv_sge", size_of::<IbvSge>(), 16),
        ("ibv_send_wr", size_of::<IbvSendRequest>(), 128),
        ("ibv_wc", size_of::<IbvWc>(), 48),
        ("ibv_port_attr", size_of::<IbvPortAttr>(), 52),
        ("ibv_device_attr", size_of::<IbvDeviceAttr>(), 232),
    ];
    for (name, ours, theirs) in sizes {
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn fields_lie_where_the_headers_have_them() {
    let places = [
        ("ibv_context.ops", offset_of!(IbvContext, ops), 8),
        ("ibv_context_ops.poll_cq", offset_of!(IbvContextOps, poll_cq), 88),
        ("ibv_context_ops.post_send", offset_of!(IbvContextOps, post_send), 200),
        ("ibv_cq.context", offset_of!(IbvCq, context), 0),
        ("ibv_qp.qp_num", offset_of!(IbvQp, qp_num), 52),
        ("ibv_mr.lkey", offset_of!(IbvMr, lkey), 36),
        ("ibv_mr.rkey", offset_of!(IbvMr, rkey), 40),
        ("ibv_qp_init_attr.cap", offset_of!(IbvQpInitAttr, cap), 32),
        ("ibv_qp_init_attr.qp_type", offset_of!(IbvQpInitAttr, qp_type), 52),
        ("ibv_qp_attr.path_mtu", offset_of!(IbvQpAttr, path_mtu), 8),
        ("ibv_qp_attr.rq_psn", offset_of!(IbvQpAttr, rq_psn), 20),
        ("ibv_qp_attr.dest_qp_num", offset_of!(IbvQpAttr, dest_qp_num), 28),
        ("ibv_qp_attr.qp_access_flags", offset_of!(IbvQpAttr, qp_access_flags), 32),
        ("ibv_qp_attr.ah_attr", offset_of!(IbvQpAttr, ah_attr), 56),
        ("ibv_qp_attr.pkey_index", offset_of!(IbvQpAttr, pkey_index), 120),
        ("ibv_qp_attr.max_rd_atomic", offset_of!(IbvQpAttr, max_rd_atomic), 126),
        ("ibv_qp_attr.min_rnr_timer", offset_of!(IbvQpAttr, min_rnr_timer), 128),
        ("ibv_qp_attr.port_num", offset_of!(IbvQpAttr, port_num), 129),
        ("ibv_qp_attr.timeout", offset_of!(IbvQpAttr, timeout), 130),
        ("ibv_qp_attr.rnr_retry", offset_of!(IbvQpAttr, rnr_retry), 132),
        ("ibv_qp_attr.rate_limit", offset_of!(IbvQpAttr, rate_limit), 136),
        ("ibv_global_route.sgid_index", offset_of!(IbvGlobalRoute, sgid_index), 20),
        ("ibv_ah_attr.dlid", offset_of!(IbvAhAttr, dlid), 24),
        ("ibv_ah_attr.is_global", offset_of!(IbvAhAttr, is_global), 29),
        ("ibv_ah_attr.port_num", offset_of!(IbvAhAttr, port_num), 30),
        ("ibv_send_wr.sg_list", offset_of!(IbvSendRequest, sg_list), 16),
        ("ibv_send_wr.opcode", offset_of!(IbvSendRequest, opcode), 28),
        ("ibv_send_wr.send_flags", offset_of!(IbvSendRequest, send_flags), 32),
        ("ibv_send_wr.wr.rdma.remote_addr", offset_of!(IbvSendRequest, remote_addr), 40),
        ("ibv_send_wr.wr.rdma.rkey", offset_of!(IbvSendRequest, rkey), 48),
        ("ibv_wc.status", offset_of!(IbvWc, status), 8),
        ("ibv_wc.qp_num", offset_of!(IbvWc, qp_num), 28),
        ("ibv_port_attr.active_mtu", offset_of!(IbvPortAttr, active_mtu), 8),
        ("ibv_port_attr.gid_tbl_len", offset_of!(IbvPortAttr, gid_tbl_len), 12),
        ("ibv_port_attr.max_msg_sz", offset_of!(IbvPortAttr, max_msg_sz), 20),
        ("ibv_port_attr.lid", offset_of!(IbvPortAttr, lid), 34),
        ("ibv_port_attr.link_layer", offset_of!(IbvPortAttr, link_layer), 46),
        ("ibv_device_attr.max_mr_size", offset_of!(IbvDeviceAttr, max_mr_size), 80),
        ("ibv_device_attr.max_qp_wr", offset_of!(IbvDeviceAttr, max_qp_wr), 112),
        ("ibv_device_attr.max_cqe", offset_of!(IbvDeviceAttr, max_cqe), 132),
        ("ibv_device_attr.max_qp_rd_atom", offset_of!(IbvDeviceAttr, max_qp_rd_atom), 144),
        ("ibv_device_attr.max_qp_init_rd_atom", offset_of!(IbvDeviceAttr, max_qp_init_rd_atom), 156),
        ("ibv_device_attr.phys_port_cnt", offset_of!(IbvDeviceAttr, phys_port_cnt), 227),
    ];
    for (name, ours, theirs) in places {
        assert_eq!(ours, theirs, "{name}");
    }
}
