//! One port of one NIC. Owns: choosing it, opening it, protection domains on it, registering memory. Must not
//! know: peers, operations.

use std::ffi::{CStr, c_int};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use super::api::VerbsApi;
use super::gid::{self, GidEntry};
use super::sys::{self, IbvContext, IbvDeviceAttr, IbvGid, IbvMr, IbvPd, IbvPortAttr};
use crate::fabric::contract::{OpenError, RegisterError};
use crate::fabric::memory::{Access, DeviceTarget};
use crate::limits::{GIDS_MAX, QUEUE_PAIR_READS_MAX, RAIL_PARTS_MAX};

/// Which NIC to open.
#[derive(Clone, Debug, Default)]
pub struct VerbsOptions {
    /// Where the library is; none: where the system has it.
    pub library: Option<PathBuf>,
    /// The device's name (`mlx5_0`), with a port if it is not the first that is up (`mlx5_0:2`); none: the
    /// first that can be used.
    pub device: Option<String>,
    /// The host's own address towards the peer: a RoCE port's entry for it is preferred.
    pub source: Option<IpAddr>,
}

/// An open port.
#[derive(Debug)]
pub(super) struct RdmaPort {
    pub(super) api: VerbsApi,
    pub(super) device_name: String,
    pub(super) port: u8,
    /// The device and the port, as people write them.
    pub(super) name: String,
    context: NonNull<IbvContext>,
    pub(super) attr: IbvPortAttr,
    /// The port's address, and its place in the port's table.
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    /// Work requests that a queue pair takes.
    pub(super) requests_max: usize,
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
}

impl std::fmt::Debug for IbvPortAttr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IbvPortAttr").field("state", &self.state).finish_non_exhaustive()
    }
}

// SAFETY: libibverbs' functions may be called by any thread on any of its objects.
unsafe impl Send for RdmaPort {}
// SAFETY: as above.
unsafe impl Sync for RdmaPort {}

impl RdmaPort {
    /// Opens the first port that is up and, if a device is named, is that one.
    ///
    /// # Errors
    /// `Unavailable`: no library, no device, no port that can be used: why, for each.
    pub(super) fn open(options: &VerbsOptions) -> Result<Arc<Self>, OpenError> {
        let api = VerbsApi::load(options.library.as_deref())?;
        let mut count = 0;
        // SAFETY: `count` has room for a number.
        let list = unsafe { (api.device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            return Err(OpenError::Unavailable("the kernel has no RDMA devices".to_owned()));
        };
        let mut reasons = Vec::new();
        let mut opened = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has so many entries, and a device that is opened stays after the list is freed.
            let found = unsafe { Self::open_entry(api, *list.as_ptr().add(index), options, &mut reasons) };
            if found.is_some() {
                opened = found;
                break;
            }
        }
        // SAFETY: the list is the library's, and used no more.
        unsafe { (api.free_device_list)(list.as_ptr()) };
        if reasons.is_empty() {
            reasons.push("there are none".to_owned());
        }
        opened.map(Arc::new).ok_or_else(|| {
            OpenError::Unavailable(format!("no RDMA device can be used: {}", reasons.join("; ")))
        })
    }

    /// # Safety
    /// `device` is an entry of a list that is not freed yet.
    unsafe fn open_entry(
        api: VerbsApi,
        device: *mut sys::IbvDevice,
        options: &VerbsOptions,
        reasons: &mut Vec<String>,
    ) -> Option<Self> {
        // SAFETY: as the caller promises; the name ends in a zero byte and lives as long as the list.
        let name = unsafe { CStr::from_ptr((api.device_name)(device)) }.to_string_lossy().into_owned();
        let wanted_port = match options.device.as_deref().map(split) {
            Some((wanted, _)) if wanted != name => return None,
            Some((_, port)) => port,
            None => None,
        };
        // SAFETY: as above.
        let Some(context) = NonNull::new(unsafe { (api.open_device)(device) }) else {
            reasons.push(format!("{name}: it cannot be opened ({})", last_error()));
            return None;
        };
        let found = Self::look(api, &name, context, wanted_port, options.source);
        found.map_err(|why| reasons.push(format!("{name}: {why}"))).ok()
    }

    /// The first port of an open device that can be used. The device is closed if there is none.
    fn look(
        api: VerbsApi,
        name: &str,
        context: NonNull<IbvContext>,
        wanted_port: Option<u8>,
        source: Option<IpAddr>,
    ) -> Result<Self, String> {
        // Closed when it is dropped.
        let mut device = Self {
            api,
            device_name: name.to_owned(),
            port: 0,
            name: String::new(),
            context,
            attr: IbvPortAttr::default(),
            gid: [0; 16],
            gid_index: 0,
            requests_max: 0,
            reads_out: 0,
            reads_in: 0,
        };
        // SAFETY: a structure of numbers, for which zeros are good; the device is open.
        let (attr, code) = unsafe {
            let mut attr: IbvDeviceAttr = std::mem::zeroed();
            let code = (api.query_device)(context.as_ptr(), &raw mut attr);
            (attr, code)
        };
        if code != 0 {
            return Err(format!("it does not answer ({})", words(code)));
        }
        let at_most = |value: c_int, most: u8| u8::try_from(value.clamp(1, c_int::from(most))).unwrap_or(1);
        device.requests_max =
            usize::try_from(attr.max_qp_wr.min(attr.max_cqe)).unwrap_or(1).clamp(1, RAIL_PARTS_MAX);
        device.reads_out = at_most(attr.max_qp_init_rd_atom, QUEUE_PAIR_READS_MAX);
        device.reads_in = at_most(attr.max_qp_rd_atom, QUEUE_PAIR_READS_MAX);
        let ports = 1..=attr.phys_port_cnt;
        let mut why = "it has no such port".to_owned();
        for port in ports.filter(|port| wanted_port.is_none_or(|wanted| wanted == *port)) {
            device.port = port;
            match device.look_at_port(source) {
                Ok(()) => {
                    device.name = format!("{name}:{port}");
                    return Ok(device);
                }
                Err(not) => why = format!("port {port} {not}"),
            }
        }
        Err(why)
    }

    fn look_at_port(&mut self, source: Option<IpAddr>) -> Result<(), String> {
        let mut attr = IbvPortAttr::default();
        // SAFETY: the device is open, `attr` has room for what the function of this version writes.
        let code = unsafe { (self.api.query_port)(self.context.as_ptr(), self.port, &raw mut attr) };
        if code != 0 {
            return Err(format!("does not answer ({})", words(code)));
        }
        if attr.state != sys::IBV_PORT_ACTIVE {
            return Err("is down".to_owned());
        }
        let entries = self.entries(attr.gid_tbl_len.min(GIDS_MAX));
        let chosen = if attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET {
            gid::choose(&entries, source)
                .ok_or("has no address for RoCE v2: give its interface an IP address")?
        } else {
            // InfiniBand's own numbers are enough within a subnet.
            entries.first().copied().unwrap_or(GidEntry { index: 0, gid: [0; 16], version: None })
        };
        self.attr = attr;
        (self.gid, self.gid_index) = (chosen.gid, chosen.index);
        Ok(())
    }

    /// The port's address table, without its empty entries.
    fn entries(&self, count: i32) -> Vec<GidEntry> {
        let types = format!("/sys/class/infiniband/{}/ports/{}/gid_attrs/types", self.device_name, self.port);
        let entry = |index: u8| {
            let mut found = IbvGid::default();
            // SAFETY: the device is open, and `found` has room for an entry.
            let code = unsafe {
                (self.api.query_gid)(self.context.as_ptr(), self.port, index.into(), &raw mut found)
            };
            let text = std::fs::read_to_string(Path::new(&types).join(index.to_string()));
            let version = text.ok().and_then(|text| gid::version(&text));
            let IbvGid(gid) = found;
            (code == 0 && gid != [0; 16]).then_some(GidEntry { index, gid, version })
        };
        (0..count).filter_map(|index| entry(u8::try_from(index).ok()?)).collect()
    }

    pub(super) fn context(&self) -> *mut IbvContext {
        self.context.as_ptr()
    }
}

impl Drop for RdmaPort {
    fn drop(&mut self) {
        // SAFETY: opened by us; whatever was made on it is gone: it holds a share of this.
        let closed = unsafe { (self.api.close_device)(self.context.as_ptr()) };
        debug_assert_eq!(closed, 0, "a device without objects closes");
    }
}

/// Memory and queue pairs of one protection domain know one another, and nobody else does.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    pd: NonNull<IbvPd>,
    pub(super) device: Arc<RdmaPort>,
}

// SAFETY: libibverbs' functions may be called by any thread on any of its objects.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(super) fn new(device: &Arc<RdmaPort>) -> Result<Arc<Self>, OpenError> {
        // SAFETY: the device is open.
        let pd = NonNull::new(unsafe { (device.api.alloc_pd)(device.context()) });
        let pd = pd.ok_or_else(|| OpenError::Failed(format!("a protection domain: {}", last_error())))?;
        Ok(Arc::new(Self { pd, device: Arc::clone(device) }))
    }

    pub(super) fn as_ptr(&self) -> *mut IbvPd {
        self.pd.as_ptr()
    }

    /// Registers host memory; `access` are libibverbs' flags.
    ///
    /// # Errors
    /// `Failed`, with the system's words.
    ///
    /// # Safety
    /// The memory stays mapped, and may be accessed as the flags say, until the registration is dropped.
    pub(super) unsafe fn register(
        self: &Arc<Self>,
        address: NonNull<u8>,
        bytes: usize,
        access: c_int,
    ) -> Result<VerbsRegistration, RegisterError> {
        // SAFETY: the domain is there; the caller vouches for the memory.
        let mr = unsafe { (self.device.api.register)(self.as_ptr(), address.as_ptr().cast(), bytes, access) };
        self.registered(mr)
    }

    /// Registers a device's memory for a peer.
    ///
    /// # Errors
    /// `Unsupported`: the library, kernel or NIC has no dma-bufs.
    pub(super) fn register_device(
        self: &Arc<Self>,
        memory: &DeviceTarget,
        access: Access,
    ) -> Result<VerbsRegistration, RegisterError> {
        let register = self.device.api.register_dmabuf.ok_or(RegisterError::Unsupported)?;
        let bytes = usize::try_from(memory.bytes).map_err(|_| RegisterError::Unsupported)?;
        let fd = memory.dma_buf.as_raw_fd();
        // SAFETY: the domain is there; the kernel checks the descriptor, and keeps what it names for as long as
        // it is registered.
        let mr = unsafe { register(self.as_ptr(), memory.offset, bytes, memory.address, fd, flags(access)) };
        if mr.is_null() {
            let error = std::io::Error::last_os_error();
            let unsupported =
                [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL, libc::EBADF, libc::EPROTONOSUPPORT];
            if error.raw_os_error().is_some_and(|code| unsupported.contains(&code)) {
                return Err(RegisterError::Unsupported);
            }
            return Err(RegisterError::Failed(error.to_string()));
        }
        self.registered(mr)
    }

    fn registered(self: &Arc<Self>, mr: *mut IbvMr) -> Result<VerbsRegistration, RegisterError> {
        let Some(mr) = NonNull::new(mr) else {
            let error = std::io::Error::last_os_error();
            let hint = if error.raw_os_error() == Some(libc::ENOMEM) {
                ": raise the locked-memory limit (LimitMEMLOCK=, ulimit -l)"
            } else {
                ""
            };
            return Err(RegisterError::Failed(format!("{error}{hint}")));
        };
        Ok(VerbsRegistration { mr: Some(mr), domain: Arc::clone(self) })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: whatever was made in it is gone: it holds a share of this. One that does not go stays with the
        // kernel until the process ends.
        unsafe { (self.device.api.dealloc_pd)(self.as_ptr()) };
    }
}

/// A registration. Dropped, it is taken back; one that cannot be stays with the kernel.
#[derive(Debug)]
pub(super) struct VerbsRegistration {
    /// None: taken back.
    mr: Option<NonNull<IbvMr>>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs' functions may be called by any thread on any of its objects.
unsafe impl Send for VerbsRegistration {}
// SAFETY: as above; the registration itself is only read.
unsafe impl Sync for VerbsRegistration {}

impl VerbsRegistration {
    /// Takes it back: after `true` no NIC touches the memory.
    pub(super) fn take_back(&mut self) -> bool {
        let Some(mr) = self.mr else { return true };
        // SAFETY: ours since it was made, and taken back once.
        if unsafe { (self.domain.device.api.deregister)(mr.as_ptr()) } != 0 {
            return false;
        }
        self.mr = None;
        true
    }

    /// What this side's operations name it by, and what peers do.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration is there.
        self.mr.map_or((0, 0), |mr| unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) })
    }
}

impl Drop for VerbsRegistration {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// libibverbs' flags for memory that a peer may access.
pub(super) fn flags(access: Access) -> c_int {
    let reads = if access.reads() { sys::IBV_ACCESS_REMOTE_READ } else { 0 };
    // Verbs want local writes allowed wherever remote ones are.
    let writes = if access.writes() { sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE } else { 0 };
    reads | writes
}

/// `name` or `name:port`.
fn split(wanted: &str) -> (&str, Option<u8>) {
    match wanted.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok()),
        None => (wanted, None),
    }
}

/// An errno in the system's words.
pub(super) fn words(code: c_int) -> std::io::Error {
    std::io::Error::from_raw_os_error(code.abs())
}

/// The last call's errno in the system's words: functions of libibverbs that make something leave it there.
pub(super) fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}
