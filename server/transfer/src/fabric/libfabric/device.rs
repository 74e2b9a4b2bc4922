//! One NIC, as a provider of libfabric has it. Owns: choosing the provider, the fabric and its domain,
//! registering memory. Must not know: peers, operations.

use std::ffi::{CStr, CString, c_void};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use super::api::FabricApi;
use super::sys::{self, FiDomain, FiFabric, FiFid, FiInfo, FiMr, FiMrAttr, FiMrDmabuf, function};
use crate::fabric::contract::{OpenError, RegisterError};
use crate::fabric::memory::{Access, DeviceTarget};
use crate::limits::REGISTER_KEYS_TRIED_MAX;
use crate::signals::keep_handlers;

/// Providers that move bytes at a network's speed, the ones to prefer first. Those that go over TCP are used
/// only when they are named: what they send is neither encrypted nor faster than our own frames.
pub const PROVIDERS_USUAL: [&str; 2] = ["efa", "cxi"];

/// Providers whose addresses are those of the host's network: they are told which one to use.
const OVER_IP: [&str; 5] = ["tcp", "net", "sockets", "udp", "verbs"];

/// Providers over TCP end the process before this version, where an endpoint is closed while a page comes in: they free its entry
/// twice (1.17's tcpx_ep_flush_all_queues). A peer that stops in the middle of a page is enough.
const TCP_SINCE: u32 = sys::version(1, 18);

/// Providers whose NICs read and write a device's memory. The others copy with the host's processors, and take a device's address for
/// one of the host.
const OF_NICS: [&str; 3] = ["efa", "cxi", "verbs"];

/// The first version of libfabric that registers dma-bufs.
const DMA_BUF_SINCE: u32 = sys::version(1, 20);

/// How to open libfabric.
#[derive(Clone, Debug, Default)]
pub struct LibfabricOptions {
    /// Where the library is; none: where the system has it.
    pub library: Option<PathBuf>,
    /// Names of providers, the ones to prefer first; none: [`PROVIDERS_USUAL`].
    pub providers: Vec<String>,
    /// The provider's own name of the NIC (`rdmap0s6-rdm`, `cxi0`, `eth0`); none: the first that it has.
    pub domain: Option<String>,
    /// The host's own address, for providers that go over IP and where no NIC is named; none: the provider
    /// chooses.
    pub source: Option<IpAddr>,
}

/// An open domain: what memory and endpoints belong to.
#[derive(Debug)]
pub(super) struct ProviderDomain {
    pub(super) api: FabricApi,
    pub(super) provider: String,
    /// The NIC, as people call it: its provider, and the provider's name for it.
    pub(super) name: String,
    domain: NonNull<FiDomain>,
    fabric: NonNull<FiFabric>,
    info: NonNull<FiInfo>,
    mr_mode: i32,
    mr_key_bytes: usize,
}

// SAFETY: the domain was opened for use by any thread (`FI_THREAD_SAFE`); what `info` points to is only read
// after `open`.
unsafe impl Send for ProviderDomain {}
// SAFETY: as above.
unsafe impl Sync for ProviderDomain {}

/// A registration. Dropped, it is taken back.
#[derive(Debug)]
pub(super) struct ProviderRegistration {
    mr: NonNull<FiMr>,
    /// Registrations go before their domain.
    _device: Arc<ProviderDomain>,
}

// SAFETY: the domain's objects may be used by any thread; a registration is only read and closed.
unsafe impl Send for ProviderRegistration {}
// SAFETY: as above.
unsafe impl Sync for ProviderRegistration {}

impl ProviderDomain {
    /// Opens the first of the wanted providers that this machine has.
    ///
    /// # Errors
    /// `Unavailable`: no library, or none of the providers. `Failed`: one that does not open.
    pub(super) fn open(options: &LibfabricOptions) -> Result<Arc<Self>, OpenError> {
        let api = FabricApi::load(options.library.as_deref())?;
        let usual = || PROVIDERS_USUAL.map(str::to_owned).to_vec();
        let wanted = if options.providers.is_empty() { usual() } else { options.providers.clone() };
        let mut missing = Vec::new();
        for provider in &wanted {
            match find(&api, provider, options) {
                Ok(info) => return Self::open_info(api, provider, info).map(Arc::new),
                Err(why) => missing.push(format!("{provider}: {why}")),
            }
        }
        let (version, _) = api.versions();
        Err(OpenError::Unavailable(format!(
            "libfabric {}.{} has none of the wanted providers here ({})",
            version >> 16,
            version & 0xffff,
            missing.join("; ")
        )))
    }

    fn open_info(api: FabricApi, provider: &str, info: NonNull<FiInfo>) -> Result<Self, OpenError> {
        let failed = |tried: &str, code: i64| {
            // SAFETY: the library made this description, and nothing else has it.
            unsafe { (api.freeinfo)(info.as_ptr()) };
            OpenError::Failed(format!("{tried} of provider {provider}: {}", api.words(code)))
        };
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        // SAFETY: the description is the library's own, and `fabric` has room for the result.
        let code = unsafe { (api.fabric)((*info.as_ptr()).fabric_attr, &raw mut fabric, null_mut()) };
        let Some(fabric) = NonNull::new(fabric).filter(|_| code == 0) else {
            return Err(failed("the fabric", code.into()));
        };
        // SAFETY: an open fabric has its table of functions.
        let code = match unsafe { function!((*fabric.as_ptr()).ops, sys::FiFabricOps, domain) } {
            // SAFETY: the fabric and its description belong together; `domain` has room for the result.
            Some(open) => unsafe { open(fabric.as_ptr(), info.as_ptr(), &raw mut domain, null_mut()) },
            None => -libc::ENOSYS,
        };
        let Some(domain) = NonNull::new(domain).filter(|_| code == 0) else {
            close(fabric.cast());
            return Err(failed("the domain", code.into()));
        };
        // SAFETY: the library fills all parts of a description that it gives.
        let (mr_mode, mr_key_bytes, nic) = unsafe {
            let attr = (*info.as_ptr()).domain_attr;
            ((*attr).mr_mode, (*attr).mr_key_size, (*attr).name)
        };
        let name = if nic.is_null() {
            provider.to_owned()
        } else {
            // SAFETY: a domain's name is the library's, and ends in a zero byte.
            format!("{provider}/{}", unsafe { CStr::from_ptr(nic) }.to_string_lossy())
        };
        Ok(Self { api, provider: provider.to_owned(), name, domain, fabric, info, mr_mode, mr_key_bytes })
    }

    pub(super) fn domain(&self) -> *mut FiDomain {
        self.domain.as_ptr()
    }

    pub(super) fn info(&self) -> *mut FiInfo {
        self.info.as_ptr()
    }

    /// Whether the server's own memory must be registered for its own operations.
    pub(super) fn wants_local(&self) -> bool {
        self.mr_mode & sys::FI_MR_LOCAL != 0
    }

    /// What peers call the first byte of memory that begins at `address`.
    pub(super) fn base(&self, address: u64) -> u64 {
        if self.mr_mode & sys::FI_MR_VIRT_ADDR != 0 { address } else { 0 }
    }

    /// Operations that an endpoint takes before one has ended.
    pub(super) fn queue_size(&self) -> usize {
        // SAFETY: the library fills all parts of a description that it gives.
        unsafe { (*(*self.info.as_ptr()).tx_attr).size }
    }

    /// Bytes that one operation may have.
    pub(super) fn message_bytes_max(&self) -> usize {
        // SAFETY: the library fills all parts of a description that it gives.
        unsafe { (*(*self.info.as_ptr()).ep_attr).max_msg_size }
    }

    /// Registers host memory for this side's own operations.
    ///
    /// # Errors
    /// The library's words.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped.
    pub(super) unsafe fn register_local(
        self: &Arc<Self>,
        address: NonNull<u8>,
        bytes: usize,
    ) -> Result<ProviderRegistration, RegisterError> {
        // SAFETY: as the caller promises.
        unsafe { self.register(address, bytes, sys::FI_READ | sys::FI_WRITE) }
    }

    /// Registers host memory for a peer's operations.
    ///
    /// # Errors
    /// The library's words.
    ///
    /// # Safety
    /// The memory stays mapped, and may be read and written by others as `access` says, until the
    /// registration is dropped and all endpoints of the domain are closed.
    pub(super) unsafe fn register_remote(
        self: &Arc<Self>,
        address: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<ProviderRegistration, RegisterError> {
        // SAFETY: as the caller promises.
        unsafe { self.register(address, bytes, remote(access)) }
    }

    /// See `register_local`.
    unsafe fn register(
        self: &Arc<Self>,
        address: NonNull<u8>,
        bytes: usize,
        access: u64,
    ) -> Result<ProviderRegistration, RegisterError> {
        self.with_key(|key, mr| {
            // SAFETY: an open domain has its table of functions.
            match unsafe { function!((*self.domain()).mr, sys::FiMrOps, reg) } {
                // SAFETY: the domain is open, `mr` has room for the result, and the caller vouches for the memory.
                Some(reg) => unsafe {
                    let (start, fid) = (address.as_ptr().cast_const().cast(), self.domain().cast());
                    reg(fid, start, bytes, access, 0, key, 0, mr, null_mut())
                },
                None => -libc::ENOSYS,
            }
        })
    }

    /// Registers a device's memory for a peer's operations.
    ///
    /// # Errors
    /// `Unsupported`: the library or the provider has no dma-bufs, or copies with the host's processors.
    pub(super) fn register_device(
        self: &Arc<Self>,
        memory: &DeviceTarget,
        access: Access,
    ) -> Result<ProviderRegistration, RegisterError> {
        let (_, version) = self.api.versions();
        let bytes = usize::try_from(memory.bytes).map_err(|_| RegisterError::Unsupported)?;
        let by_nic = self.provider.split(';').any(|part| OF_NICS.contains(&part));
        if version < DMA_BUF_SINCE || !by_nic {
            return Err(RegisterError::Unsupported);
        }
        let dmabuf = FiMrDmabuf {
            fd: memory.dma_buf.as_raw_fd(),
            offset: memory.offset,
            len: bytes,
            base_addr: std::ptr::without_provenance_mut(memory.address as usize),
        };
        let made = self.with_key(|key, mr| {
            let attr = FiMrAttr {
                dmabuf: &raw const dmabuf,
                iov_count: 1,
                access: remote(access),
                offset: 0,
                requested_key: key,
                context: null_mut(),
                auth_key_size: 0,
                auth_key: null_mut(),
                iface: 0,
                device: 0,
                later: [0; 8],
            };
            // SAFETY: an open domain has its table of functions.
            match unsafe { function!((*self.domain()).mr, sys::FiMrOps, regattr) } {
                // SAFETY: the domain is open, `mr` has room for the result, and the kernel keeps the dma-buf's
                // memory for as long as it is registered.
                Some(reg) => unsafe { reg(self.domain().cast(), &raw const attr, sys::FI_MR_DMABUF, mr) },
                None => -libc::ENOSYS,
            }
        });
        made.map_err(|why| match why {
            // Providers without dma-bufs say so in many ways.
            RegisterError::Failed(_) => RegisterError::Unsupported,
            why => why,
        })
    }

    /// Calls `register` with a key: the provider's choice where it insists, else one drawn at random, again
    /// where that is taken.
    fn with_key(
        self: &Arc<Self>,
        mut register: impl FnMut(u64, *mut *mut FiMr) -> i32,
    ) -> Result<ProviderRegistration, RegisterError> {
        let failed = |code: i32| {
            let hint = if -code == libc::ENOMEM {
                "; raise the locked-memory limit (LimitMEMLOCK=, ulimit -l)"
            } else {
                ""
            };
            RegisterError::Failed(format!("{}{hint}", self.api.words(code.into())))
        };
        let mut code = 0;
        for _ in 0..REGISTER_KEYS_TRIED_MAX {
            let key = self.draw_key().map_err(|why| RegisterError::Failed(why.to_string()))?;
            let mut mr = null_mut();
            code = register(key, &raw mut mr);
            if let Some(mr) = NonNull::new(mr).filter(|_| code == 0) {
                return Ok(ProviderRegistration { mr, _device: Arc::clone(self) });
            }
            // A key that is taken: FI_ENOKEY (266), or what older providers say.
            if ![-266, -libc::EEXIST, -libc::ENOTUNIQ].contains(&code) {
                break;
            }
        }
        Err(failed(code))
    }

    fn draw_key(&self) -> Result<u64, rustix::io::Errno> {
        if self.mr_mode & sys::FI_MR_PROV_KEY != 0 {
            return Ok(0);
        }
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let bits = u32::try_from(self.mr_key_bytes.min(8) * 8).unwrap_or(64);
        Ok(u64::from_le_bytes(bytes) & u64::MAX.checked_shr(64 - bits).unwrap_or(0))
    }
}

impl Drop for ProviderDomain {
    fn drop(&mut self) {
        close(self.domain.cast());
        close(self.fabric.cast());
        // SAFETY: the library made this description, and nothing has it after the domain.
        unsafe { (self.api.freeinfo)(self.info.as_ptr()) };
    }
}

impl ProviderRegistration {
    /// What operations on the memory name it by, on this side.
    pub(super) fn desc(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        unsafe { (*self.mr.as_ptr()).desc }
    }

    /// What peers name it by.
    pub(super) fn key(&self) -> u64 {
        // SAFETY: the registration is open.
        unsafe { (*self.mr.as_ptr()).key }
    }
}

impl Drop for ProviderRegistration {
    fn drop(&mut self) {
        close(self.mr.cast());
    }
}

/// Closes an object of the library; gives what it said. One that does not close stays with the library: it
/// was asked only when nothing of ours depends on the answer, or the caller looks at it.
pub(super) fn close(fid: NonNull<FiFid>) -> i32 {
    // SAFETY: every object of the library begins with this and is open: whoever owns it closes it once.
    match unsafe { function!((*fid.as_ptr()).ops, sys::FiOps, close) } {
        // SAFETY: as above.
        Some(close) => unsafe { close(fid.as_ptr()) },
        None => -libc::ENOSYS,
    }
}

fn remote(access: Access) -> u64 {
    let reads = if access.reads() { sys::FI_REMOTE_READ } else { 0 };
    let writes = if access.writes() { sys::FI_REMOTE_WRITE } else { 0 };
    reads | writes
}

/// Whether a provider of this version is safe to use.
///
/// # Errors
/// Why not, and what to do.
fn check_version(provider: &str, version: u32) -> Result<(), String> {
    let over_tcp = provider.split(';').any(|part| ["tcp", "net"].contains(&part));
    if over_tcp && version < TCP_SINCE {
        return Err(
            "before libfabric 1.18 a peer that stops ends the process: install a later one, or go framed"
                .to_owned(),
        );
    }
    Ok(())
}

/// What the provider has for us: the first description of it. Why not, if none.
fn find(api: &FabricApi, provider: &str, options: &LibfabricOptions) -> Result<NonNull<FiInfo>, String> {
    let (_, version) = api.versions();
    check_version(provider, version)?;
    let name = CString::new(provider).map_err(|_| "its name has a zero byte".to_owned())?;
    let nic = options.domain.as_deref().map(CString::new).transpose();
    let nic = nic.map_err(|_| "the NIC's name has a zero byte".to_owned())?;
    let over_ip = OVER_IP.iter().any(|known| provider.split(';').any(|part| part == *known));
    let source = options.source.filter(|_| over_ip && nic.is_none());
    let node = source.map(|source| CString::new(source.to_string()));
    let node = node.transpose().map_err(|_| "the address has a zero byte".to_owned())?;
    // SAFETY: asks for an empty description, which is the library's and is freed below.
    let hints = NonNull::new(unsafe { (api.dupinfo)(null()) }).ok_or("no memory")?;
    // SAFETY: the library fills all parts of a description that it gives; names are copied to memory that it
    // frees together with the description.
    unsafe { wish(&mut *hints.as_ptr(), &name, nic.as_deref()) };
    let (node, flags) = node.as_ref().map_or((null(), 0), |node| (node.as_ptr(), sys::FI_SOURCE));
    let mut found = null_mut();
    // SAFETY: texts end in a zero byte, and `found` has room for the result.
    let ask = || unsafe { (api.getinfo)(version, node, null(), flags, hints.as_ptr(), &raw mut found) };
    // The first one loads what providers lie in files of their own.
    let code = keep_handlers(ask);
    // SAFETY: ours since `dupinfo`, and used no more.
    unsafe { (api.freeinfo)(hints.as_ptr()) };
    let found = NonNull::new(found).filter(|_| code == 0).ok_or_else(|| api.words(code.into()))?;
    let found = match &nic {
        // Some providers do not look at the name that was asked for.
        // SAFETY: the library made this list, and nothing else has it.
        Some(nic) => unsafe { of_nic(api, found, nic) }.ok_or("it has no NIC of that name")?,
        None => found,
    };
    // SAFETY: the library fills all parts of a description that it gives.
    let (key_bytes, mr_mode) = unsafe {
        let attr = (*found.as_ptr()).domain_attr;
        ((*attr).mr_key_size, (*attr).mr_mode)
    };
    if key_bytes > 8 && mr_mode & sys::FI_MR_PROV_KEY != 0 {
        // SAFETY: the library made this description, and nothing else has it.
        unsafe { (api.freeinfo)(found.as_ptr()) };
        return Err(format!("its keys have {key_bytes} bytes, more than 8"));
    }
    Ok(found)
}

/// The description of the NIC of this name, if the list has it. The rest of the list is freed.
///
/// # Safety
/// `list` is the library's, and nothing else has it.
unsafe fn of_nic(api: &FabricApi, list: NonNull<FiInfo>, nic: &CStr) -> Option<NonNull<FiInfo>> {
    let (mut next, mut found) = (list.as_ptr().cast_const(), None);
    // SAFETY: the library fills all parts of its descriptions, names end in a zero byte, and a copy is the
    // library's own, without those behind it.
    unsafe {
        while let (Some(info), None) = (next.as_ref(), found) {
            let name = (*info.domain_attr).name;
            if !name.is_null() && CStr::from_ptr(name) == nic {
                found = NonNull::new((api.dupinfo)(info));
            }
            next = info.next;
        }
        (api.freeinfo)(list.as_ptr());
    }
    found
}

/// What we ask a provider for.
///
/// # Safety
/// `hints` is an empty description that the library made, with all its parts.
unsafe fn wish(hints: &mut FiInfo, provider: &CStr, nic: Option<&CStr>) {
    hints.caps = sys::FI_RMA | sys::FI_MSG;
    hints.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
    // SAFETY: as the caller promises; the copies of names are the library's to free.
    unsafe {
        (*hints.ep_attr).kind = sys::FI_EP_RDM;
        let domain = &mut *hints.domain_attr;
        domain.threading = sys::FI_THREAD_SAFE;
        domain.mr_mode = sys::FI_MR_LOCAL | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY | sys::FI_MR_VIRT_ADDR;
        if let Some(nic) = nic {
            domain.name = libc::strdup(nic.as_ptr());
        }
        (*hints.tx_attr).op_flags = sys::FI_DELIVERY_COMPLETE;
        (*hints.fabric_attr).prov_name = libc::strdup(provider.as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::{check_version, sys};

    #[test]
    fn providers_that_a_stopped_peer_can_crash_are_refused() {
        for provider in ["tcp;ofi_rxm", "net", "tcp"] {
            assert!(
                check_version(provider, sys::version(1, 17)).is_err_and(|why| why.contains("1.18")),
                "{provider}"
            );
            assert_eq!(check_version(provider, sys::version(1, 18)), Ok(()));
        }
        assert_eq!(check_version("efa", sys::version(1, 17)), Ok(()));
    }
}
