//! libfabric without the engine: one endpoint, one registration, a loop. Owns: the limit to hold the engine against.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use turnkv_transfer::Region;
use turnkv_transfer::fabric::RegionKey;

use crate::sys::{self, FiContext, FiCqEntry, FiInfo, FiMsgRma, FiRmaIov, function};
use crate::{MEMORY_BYTES, Plan};

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int;
type OpenFabric = unsafe extern "C" fn(*mut sys::FiFabricAttr, *mut *mut sys::FiFabric, *mut c_void) -> c_int;

/// An open endpoint with its memory. Never closed: the process ends soon.
pub(crate) struct Bare {
    ep: *mut sys::FiEndpoint,
    cq: *mut sys::FiCq,
    av: *mut sys::FiAv,
    mr: *mut sys::FiMr,
    base: u64,
    peer: u64,
    memory: Arc<Region>,
    polls: Arc<AtomicBool>,
    contexts: Vec<FiContext>,
}

/// A queue that another thread polls.
struct Queue(*mut sys::FiCq);

// SAFETY: the domain was opened for use by any thread.
unsafe impl Send for Queue {}

fn ok(code: c_int, what: &str) {
    assert_eq!(code, 0, "{what}");
}

/// What is asked of a provider.
///
/// # Safety
/// `hints` is an empty description that the library made, with all its parts.
unsafe fn wish(hints: *mut FiInfo, provider: &str) {
    // SAFETY: as the caller promises; the copy of the name is the library's to free.
    unsafe {
        (*hints).caps = sys::FI_RMA | sys::FI_MSG;
        (*hints).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        (*(*hints).ep_attr).kind = sys::FI_EP_RDM;
        (*(*hints).domain_attr).threading = sys::FI_THREAD_SAFE;
        (*(*hints).domain_attr).mr_mode =
            sys::FI_MR_LOCAL | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY | sys::FI_MR_VIRT_ADDR;
        let name = CString::new(provider).expect("no zero byte");
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
    }
}

impl Bare {
    /// Opens an endpoint of that provider on the loopback, and registers the memory. A target's queue is polled by a thread
    /// while `poll` says so.
    pub(crate) fn open(provider: &str, memory: &Arc<Region>, is_target: bool) -> Self {
        let library = crate::folder::library().map_or_else(
            || c"libfabric.so.1".to_owned(),
            |path| CString::new(path.to_str().expect("a path of ours")).expect("no zero byte"),
        );
        // SAFETY: libfabric's own functions by their versions and types; descriptions, tables and objects are used as its
        // header's inline functions use them, in one thread; the memory is the region's, which `Self` keeps.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "the engine loaded it");
            let find = |name: &CStr, version: &CStr| libc::dlvsym(handle, name.as_ptr(), version.as_ptr());
            let getinfo: GetInfo = std::mem::transmute(find(c"fi_getinfo", c"FABRIC_1.3"));
            let dupinfo: unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo =
                std::mem::transmute(find(c"fi_dupinfo", c"FABRIC_1.3"));
            let open_fabric: OpenFabric = std::mem::transmute(find(c"fi_fabric", c"FABRIC_1.1"));
            let hints = dupinfo(null());
            wish(hints, provider);
            let (mut info, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut());
            let loopback = c"127.0.0.1".as_ptr();
            ok(
                getinfo(sys::version(1, 17), loopback, null(), sys::FI_SOURCE, hints, &raw mut info),
                "provider",
            );
            ok(open_fabric((*info).fabric_attr, &raw mut fabric, null_mut()), "fabric");
            let open = function!((*fabric).ops, sys::FiFabricOps, domain).expect("it has one");
            ok(open(fabric, info, &raw mut domain, null_mut()), "domain");
            let (mut av, mut cq, mut ep, mut mr) = (null_mut(), null_mut(), null_mut(), null_mut());
            let mut av_attr: sys::FiAvAttr = std::mem::zeroed();
            let mut cq_attr: sys::FiCqAttr = std::mem::zeroed();
            (cq_attr.size, cq_attr.format) = (1024, sys::FI_CQ_FORMAT_CONTEXT);
            let table = (*domain).ops;
            let open = function!(table, sys::FiDomainOps, av_open).expect("it has one");
            ok(open(domain, &raw mut av_attr, &raw mut av, null_mut()), "address table");
            let open = function!(table, sys::FiDomainOps, cq_open).expect("it has one");
            ok(open(domain, &raw mut cq_attr, &raw mut cq, null_mut()), "queue");
            let open = function!(table, sys::FiDomainOps, endpoint).expect("it has one");
            ok(open(domain, info, &raw mut ep, null_mut()), "endpoint");
            let bind = function!((*ep).fid.ops, sys::FiOps, bind).expect("it has one");
            ok(bind(ep.cast(), av.cast(), 0), "bind");
            ok(bind(ep.cast(), cq.cast(), sys::FI_TRANSMIT | sys::FI_RECV), "bind");
            let control = function!((*ep).fid.ops, sys::FiOps, control).expect("it has one");
            ok(control(ep.cast(), sys::FI_ENABLE, null_mut()), "enable");
            let access = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
            let register = function!((*domain).mr, sys::FiMrOps, reg).expect("it has one");
            let (start, key) = (memory.as_ptr(), u64::from(std::process::id()) & 0xffff);
            let code = register(
                domain.cast(),
                start.cast(),
                MEMORY_BYTES,
                access,
                0,
                key,
                0,
                &raw mut mr,
                null_mut(),
            );
            ok(code, "registration");
            let virtual_addresses = (*(*info).domain_attr).mr_mode & sys::FI_MR_VIRT_ADDR != 0;
            let base = if virtual_addresses { start.addr() as u64 } else { 0 };
            let polls = Arc::new(AtomicBool::new(false));
            let contexts = vec![FiContext { internal: [0; 8] }; 1024];
            let bare = Self { ep, cq, av, mr, base, peer: 0, memory: Arc::clone(memory), polls, contexts };
            if is_target {
                bare.start_polling();
            }
            bare
        }
    }

    fn start_polling(&self) {
        let (queue, polls) = (Queue(self.cq), Arc::clone(&self.polls));
        let poll = move || {
            let queue = queue;
            loop {
                if !polls.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // SAFETY: the queue is open for the life of the process, and there is room for what it gives.
                let count = unsafe {
                    let mut entries = [FiCqEntry { context: null_mut() }; 16];
                    let read = function!((*queue.0).ops, sys::FiCqOps, read).expect("it has one");
                    read(queue.0, entries.as_mut_ptr().cast(), 16)
                };
                if count < 0 {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        };
        std::thread::Builder::new().name("bare-target".to_owned()).spawn(poll).expect("there are threads");
    }

    /// Whether a target's thread polls.
    pub(crate) fn poll(&self, polls: bool) {
        self.polls.store(polls, Ordering::Release);
    }

    pub(crate) fn address(&self) -> Vec<u8> {
        let (mut bytes, mut length) = (vec![0_u8; 256], 256);
        // SAFETY: the endpoint is open, and the buffer is as long as it says.
        unsafe {
            let getname = function!((*self.ep).cm, sys::FiCmOps, getname).expect("it has one");
            ok(getname(self.ep.cast(), bytes.as_mut_ptr().cast(), &raw mut length), "address");
        }
        bytes.truncate(length);
        bytes
    }

    /// What peers name the memory and its first byte by.
    pub(crate) fn key(&self) -> (u64, u64) {
        // SAFETY: the registration is open.
        (unsafe { (*self.mr).key }, self.base)
    }

    pub(crate) fn learn(&mut self, address: &[u8]) {
        // SAFETY: the table is open, the address is one that this provider made.
        let learnt = unsafe {
            let insert = function!((*self.av).ops, sys::FiAvOps, insert).expect("it has one");
            insert(self.av, address.as_ptr().cast(), 1, &raw mut self.peer, 0, null_mut())
        };
        assert_eq!(learnt, 1, "the address is good");
    }

    /// Moves so many bytes; in GB/s.
    pub(crate) fn run(&mut self, plan: &Plan, key: RegionKey, reads: bool) -> f64 {
        let spans = plan.total_bytes / plan.span_bytes;
        let started = Instant::now();
        let (mut sent, mut done) = (0, 0);
        while done < spans {
            while sent < spans && sent - done < plan.under_way && self.begin(plan, key, reads, sent) {
                sent += 1;
            }
            done += self.ended();
        }
        plan.total_bytes as f64 / started.elapsed().as_secs_f64() / 1e9
    }

    fn begin(&mut self, plan: &Plan, key: RegionKey, reads: bool, number: usize) -> bool {
        let at = number * plan.span_bytes % MEMORY_BYTES;
        let iov =
            libc::iovec { iov_base: self.memory.as_ptr().wrapping_add(at).cast(), iov_len: plan.span_bytes };
        let remote = FiRmaIov { addr: key.base + at as u64, len: plan.span_bytes, key: key.key };
        let context = &raw mut self.contexts[number % 1024];
        // SAFETY: endpoint and registration are open; the span lies in the memory; a context is used again only after 1024
        // others, and fewer are under way.
        let code = unsafe {
            let mut desc = (*self.mr).desc;
            let message = FiMsgRma {
                msg_iov: &raw const iov,
                desc: &raw mut desc,
                iov_count: 1,
                addr: self.peer,
                rma_iov: &raw const remote,
                rma_iov_count: 1,
                context: context.cast(),
                data: 0,
            };
            let call = if reads {
                function!((*self.ep).rma, sys::FiRmaOps, readmsg)
            } else {
                function!((*self.ep).rma, sys::FiRmaOps, writemsg)
            };
            let flags =
                if reads { sys::FI_COMPLETION } else { sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE };
            call.expect("it has one")(self.ep, &raw const message, flags)
        };
        assert!(code == 0 || code == -(libc::EAGAIN as isize), "it began: {code}");
        code == 0
    }

    fn ended(&self) -> usize {
        let mut entries = [FiCqEntry { context: null_mut() }; 16];
        // SAFETY: the queue is open, and there is room for what it gives.
        let count = unsafe {
            let read = function!((*self.cq).ops, sys::FiCqOps, read).expect("it has one");
            read(self.cq, entries.as_mut_ptr().cast(), 16)
        };
        assert!(count >= 0 || count == -(libc::EAGAIN as isize), "A TRANSFER FAILED: {count}");
        usize::try_from(count).unwrap_or(0)
    }
}
