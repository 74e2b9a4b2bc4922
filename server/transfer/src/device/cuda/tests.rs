//! The CUDA driver against a library that is not NVIDIA's (`library`). Shows: what we ask, in which context, and what becomes of
//! every failure.

mod library;

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use cudarc::driver::sys;

use super::CudaDriver;
use super::api::Api;
use crate::device::driver::{CopyRequest, DeviceErrorKind, Driver, Event, Kernel, Priority, Stream};
use crate::device::opening::load_kernels;
use crate::limits::{COPY_BATCH_MAX, KERNEL_BLOCKS_MAX};

use self::library::*;

fn open(api: &'static Api) -> CudaDriver {
    CudaDriver::open_through(api, 1).expect("the library opens any device")
}

#[test]
fn a_driver_without_one_of_the_functions_is_too_old_and_says_which() {
    for &name in Api::NAMES {
        let find = |wanted: &str| find(wanted).filter(|_| wanted.trim_end_matches('\0') != name);
        // SAFETY: as in `library`.
        let failed = unsafe { Api::resolve(find) }.err().unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(failed.kind, DeviceErrorKind::Absent);
        assert!(failed.message.contains(name) && failed.message.contains("535"), "{failed}");
    }
}

#[test]
fn without_a_driver_library_there_are_no_devices_and_no_panic() {
    if CudaDriver::count() > 0 {
        return; // a machine with a GPU: nothing to see
    }
    let failed = CudaDriver::open(0).expect_err("there is none");
    assert_eq!(failed.kind, DeviceErrorKind::Absent, "{failed}");
}

#[test]
fn a_driver_that_does_not_start_is_absent_whatever_it_says() {
    let (_turn, api) = library();
    for code in [100, 999, 304, 34] {
        fail("cuInit", code);
        let failed = api.start().expect_err("told to fail");
        assert_eq!(failed.kind, DeviceErrorKind::Absent);
        assert!(failed.message.contains("CUDA_ERROR_OF_THIS_TEST (told to fail)"), "{failed}");
    }
}

#[test]
fn the_device_is_named_and_asked_for_what_it_can_do() {
    let (_turn, api) = library();
    let driver = open(api);
    assert_eq!(driver.name(), "Test GPU (cuda 1, compute 1.1, driver of CUDA 13.1)");
    assert_eq!((driver.compute_capability(), driver.numa_node()), ((1, 1), None));
    let memory = driver.memory().expect("it answers");
    assert_eq!((memory.free_bytes, memory.total_bytes), (3 << 30, 80 << 30));
    fake().attributes.insert(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING as u32, 0);
    let failed = CudaDriver::open_through(api, 0).expect_err("two address spaces");
    assert_eq!(failed.kind, DeviceErrorKind::Unsupported);
    fail("cuDeviceGet", 101);
    let failed = CudaDriver::open_through(api, 9).expect_err("no such device");
    assert_eq!(failed.kind, DeviceErrorKind::Absent);
    assert!(failed.message.contains("CUDA device 9"), "{failed}");
}

#[test]
fn the_numa_node_is_what_linux_says_of_the_slot() {
    let devices = tempfile::tempdir().expect("a directory can be made");
    for (slot, said) in [("0000:1b:00.0", "1\n"), ("0000:9d:00.0", "-1\n")] {
        std::fs::create_dir(devices.path().join(slot)).expect("a directory can be made");
        std::fs::write(devices.path().join(slot).join("numa_node"), said).expect("a file can be written");
    }
    let node = |bus| super::numa_node_of(devices.path(), bus);
    assert_eq!(node("0000:1B:00.0"), Some(1), "CUDA writes it in capitals, Linux does not");
    assert_eq!((node("0000:9D:00.0"), node("0000:00:00.0")), (None, None));
}

/// A descriptor of something.
fn descriptor() -> std::ffi::c_int {
    let (end, _) = std::io::pipe().expect("a pipe can be made");
    std::os::fd::OwnedFd::from(end).into_raw_fd()
}

#[test]
fn memory_for_nics_is_exported_as_a_dma_buf_and_given_back_where_that_fails() {
    let (_turn, api) = library();
    let driver = open(api);
    fake().descriptor = descriptor();
    let (address, _dma_buf) = driver.allocate_exported(4 << 20).expect("it can");
    assert_eq!((address, noted("allocate")), (0x1000, vec![vec![4 << 20]]));
    assert_eq!(noted("export"), [[0x1000, 4 << 20, 1, 0, OURS as u64]]);
    fake().descriptor = -1;
    let failed = driver.allocate_exported(2 << 20).expect_err("there is no descriptor");
    assert_eq!((failed.kind, count("cuMemFree_v2")), (DeviceErrorKind::Unsupported, 1));
    fail("cuMemGetHandleForAddressRange", 801);
    let failed = driver.allocate_exported(2 << 20).expect_err("told to fail");
    assert_eq!((failed.kind, count("cuMemFree_v2")), (DeviceErrorKind::Unsupported, 2), "{failed}");
    assert!(failed.message.contains("exporting 2097152 bytes"), "{failed}");
}

#[test]
fn what_nics_wrote_is_flushed_where_the_device_does_not_order_it() {
    use sys::CUdevice_attribute as Attribute;
    let dma_buf = Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED as u32;
    let options = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as u32;
    let ordering = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as u32;
    assert_eq!((dma_buf, options, ordering), (124, 117, 118), "NVIDIA's numbers");
    for (said, exports, flushes) in [
        ([(dma_buf, 0), (options, 3), (ordering, 200)], false, 0),
        ([(dma_buf, 1), (options, 0), (ordering, 100)], true, 0),
        ([(dma_buf, 1), (options, 0), (ordering, 200)], true, 0),
        ([(dma_buf, 1), (options, 3), (ordering, 0)], true, 1),
        ([(dma_buf, 1), (options, 1), (ordering, 0)], true, 1),
        ([(dma_buf, 1), (options, 2), (ordering, 0)], false, 0),
    ] {
        let (_turn, api) = library();
        fake().attributes.extend(said);
        fake().descriptor = descriptor();
        let driver = open(api);
        let exported = driver.allocate_exported(2 << 20);
        assert_eq!(exported.is_ok(), exports, "{said:?}: {exported:?}");
        driver.flush_nic_writes().expect("nothing fails");
        assert_eq!(noted("flush"), vec![vec![0, 100, OURS as u64]; flushes], "{said:?}");
        assert_eq!(noted("allocate").is_empty(), !exports, "nothing is taken in vain");
    }
}

#[test]
fn a_driver_without_the_functions_for_nics_is_used_without_them() {
    for (missing, said) in [("cuMemGetHandleForAddressRange", "515"), ("cuFlushGPUDirectRDMAWrites", "flush")]
    {
        let (_turn, _) = library();
        let find = |wanted: &str| find(wanted).filter(|_| wanted.trim_end_matches('\0') != missing);
        // SAFETY: as in `library`.
        let api = unsafe { Api::resolve(find) }.expect("the others are there");
        fake().descriptor = -1;
        let failed = open(Box::leak(Box::new(api))).allocate_exported(2 << 20).expect_err("it cannot");
        assert_eq!(failed.kind, DeviceErrorKind::Unsupported);
        assert!(failed.message.contains(said), "{failed}");
    }
}

/// One of every call; failures are welcome.
fn call_everything(driver: &CudaDriver) {
    let (stream, event) = (Stream(0x3000), Event(0x4000));
    let request = CopyRequest { target: 64, source: 128, bytes: 32 };
    let kernel = Kernel::Copy { pieces: 8, count: 1, blocks: 1 };
    driver.memory().ok();
    driver.allocate(1).ok();
    driver.allocate_exported(1).ok();
    driver.flush_nic_writes().ok();
    driver.allocate_pinned(1).ok();
    driver.new_stream(Priority::Low).ok();
    driver.new_event().ok();
    driver.passed(event).ok();
    driver.is_capturing(stream).ok();
    // SAFETY: this library dereferences none of it.
    unsafe {
        driver.free(0x1000).ok();
        driver.free_pinned(std::ptr::null_mut()).ok();
        driver.register(std::ptr::null_mut(), 4096).ok();
        driver.unregister(std::ptr::null_mut()).ok();
        driver.record(event, stream).ok();
        driver.wait(stream, event).ok();
        driver.copy(request, stream).ok();
        driver.copy_batch(&[request], stream).ok();
        driver.launch(kernel, stream).ok();
        driver.end_event(event);
        driver.end_stream(stream);
    }
}

#[test]
fn every_call_runs_in_the_primary_context_and_leaves_the_callers_as_it_was() {
    let (_turn, api) = library();
    let driver = open(api);
    for (before, pushes) in [(vec![], true), (vec![ENGINES], true), (vec![ENGINES, OURS], false)] {
        for failing in [false, true] {
            fake().calls.clear();
            fake().contexts.clone_from(&before);
            fake().mode = 1;
            fake().codes.clear();
            if failing {
                for name in ["cuMemcpyAsync", "cuMemAlloc_v2", "cuEventQuery", "cuLaunchKernel", "batch"] {
                    fail(name, 1);
                }
            }
            call_everything(&driver);
            let fake = fake();
            assert_eq!(
                (&fake.contexts, fake.mode),
                (&before, 1),
                "contexts and capture mode are the caller's"
            );
            assert_eq!(fake.calls.contains(&"cuCtxPushCurrent_v2"), pushes);
            drop(fake);
        }
    }
    assert!(noted("copy").iter().all(|numbers| numbers[4] == OURS as u64), "in the primary context");
}

#[test]
fn work_is_done_with_a_relaxed_capture_mode() {
    let (_turn, api) = library();
    let driver = open(api);
    fake().calls.clear();
    assert_eq!(driver.passed(Event(0x4000)), Ok(true));
    let calls = fake().calls.clone();
    let place = |name: &str| calls.iter().position(|call| *call == name).expect("called");
    assert!(place("cuThreadExchangeStreamCaptureMode") < place("cuEventQuery"));
    assert_eq!(calls.last(), Some(&"cuCtxPopCurrent_v2"));
    assert_eq!(count("cuThreadExchangeStreamCaptureMode"), 2, "there and back");
}

#[test]
fn streams_events_and_memory_have_the_flags_that_we_promise() {
    let (_turn, api) = library();
    let driver = open(api);
    assert_eq!(driver.new_stream(Priority::Low), Ok(Stream(0x3000)));
    driver.new_stream(Priority::High).expect("it makes any");
    let non_blocking = 1;
    assert_eq!(noted("stream"), [vec![non_blocking, 0], vec![non_blocking, -5_i64 as u64]]);
    assert_eq!(driver.new_event(), Ok(Event(0x4000)));
    assert_eq!(noted("event"), [[2]], "no timing");
    driver.allocate_pinned(4096).expect("it gives any");
    assert_eq!(noted("pinned"), [[1 | 2]], "portable, mapped, never write-combined");
    // SAFETY: this library does not touch the memory.
    unsafe { driver.register(std::ptr::null_mut(), 8192) }.expect("it takes any");
    assert_eq!(noted("register"), [[8192, 1 | 2]], "portable, mapped, never read-only");
    // SAFETY: as above.
    unsafe { driver.unregister(std::ptr::null_mut()) }.expect("it is registered");
    // SAFETY: as above.
    unsafe { driver.record(Event(0x4000), Stream(0)) }.expect("the engine's default stream");
    assert_eq!(noted("record"), [[0x4000, 0]]);
}

#[test]
fn memory_that_cannot_be_registered_is_staged() {
    let (_turn, api) = library();
    let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    fake().attributes.insert(which as u32, 0);
    let driver = open(api);
    // SAFETY: this library does not touch the memory.
    let failed = unsafe { driver.register(std::ptr::null_mut(), 4096) }.expect_err("another address there");
    assert_eq!((failed.kind, count("cuMemHostRegister_v2")), (DeviceErrorKind::Unsupported, 0));
    fake().attributes.clear();
    let driver = open(api);
    for (code, kind) in [
        (304, DeviceErrorKind::NoMemory),
        (2, DeviceErrorKind::NoMemory),
        (801, DeviceErrorKind::Unsupported),
        (712, DeviceErrorKind::Invalid),
    ] {
        fail("cuMemHostRegister_v2", code);
        // SAFETY: as above.
        let failed = unsafe { driver.register(std::ptr::null_mut(), 4096) }.expect_err("told to fail");
        assert_eq!(failed.kind, kind, "{failed}");
    }
}

#[test]
fn devices_of_a_process_share_a_registration_and_the_last_one_ends_it() {
    let (_turn, api) = library();
    let (one, other) = (open(api), open(api));
    let base = std::ptr::without_provenance_mut(0x7000);
    let register = |driver: &CudaDriver, bytes| {
        // SAFETY: this library does not touch the memory.
        unsafe { driver.register(base, bytes) }
    };
    let unregister = |driver: &CudaDriver| {
        // SAFETY: as above.
        unsafe { driver.unregister(base) }
    };
    fail("cuMemHostRegister_v2", 304);
    assert_eq!(register(&one, 4096).expect_err("told to fail").kind, DeviceErrorKind::NoMemory);
    fake().codes.clear();
    for driver in [&one, &other] {
        register(driver, 4096).expect("a failure is not remembered, and a second user is welcome");
    }
    assert_eq!(noted("register").len(), 1);
    fail("cuMemHostRegister_v2", 712);
    assert_eq!(register(&other, 8192).expect_err("other memory").kind, DeviceErrorKind::Invalid);
    fake().codes.clear();
    unregister(&one).expect("the other one still uses it");
    assert_eq!(count("cuMemHostUnregister"), 0);
    unregister(&other).expect("it was the last");
    assert_eq!(count("cuMemHostUnregister"), 1);
    register(&one, 8192).expect("it is free again, for any length");
    unregister(&one).expect("it was the last");
    assert_eq!((noted("register").len(), count("cuMemHostUnregister")), (2, 2));
}

#[test]
fn a_copy_that_spans_two_registrations_is_refused() {
    let (_turn, api) = library();
    let driver = open(api);
    let piece = |at: usize| std::ptr::without_provenance_mut(0x10_000 + at * 4096);
    for at in [0, 1] {
        // SAFETY: this library does not touch the memory.
        unsafe { driver.register(piece(at), 4096) }.expect("it takes any");
    }
    let copy = |target, bytes| {
        let request = CopyRequest { target, source: 0x90_000, bytes };
        // SAFETY: this library copies nothing.
        unsafe { (driver.copy(request, Stream(1)), driver.copy_batch(&[request], Stream(1))) }
    };
    for (target, bytes) in [(0x10_000, 4096), (0x11_000, 4096), (0x10_800, 2048)] {
        assert_eq!(copy(target, bytes), (Ok(()), Ok(())));
    }
    let (one, many) = copy(0x10_800, 4096);
    assert_eq!(one.expect_err("two registrations").kind, DeviceErrorKind::Invalid);
    assert_eq!(many.expect_err("two registrations").kind, DeviceErrorKind::Invalid);
    for at in [0, 1] {
        // SAFETY: as above.
        unsafe { driver.unregister(piece(at)) }.expect("it is registered");
    }
}

#[test]
fn a_stream_that_is_captured_says_so() {
    let (_turn, api) = library();
    let driver = open(api);
    fake().captures.extend([(0x3001, 1), (0x3002, 2), (0x3003, 77)]);
    assert_eq!(driver.is_capturing(Stream(0x3000)), Ok(false));
    for stream in [0x3001, 0x3002, 0x3003] {
        assert_eq!(driver.is_capturing(Stream(stream)), Ok(true), "{stream:#x}");
    }
    fail("cuStreamIsCapturing", 906);
    let failed = driver.is_capturing(Stream(0)).expect_err("the legacy stream, and another is captured");
    assert_eq!(failed.kind, DeviceErrorKind::Invalid, "{failed}");
}

#[test]
fn an_event_has_passed_or_not_or_the_device_is_broken() {
    let (_turn, api) = library();
    let driver = open(api);
    fail("cuEventQuery", 600);
    assert_eq!(driver.passed(Event(0x4000)), Ok(false));
    for code in [700, 719, 214, 400, 4, 77_777] {
        fail("cuEventQuery", code);
        let failed = driver.passed(Event(0x4000)).expect_err("told to fail");
        assert_eq!(failed.kind, DeviceErrorKind::Broken, "{code}");
    }
}

fn requests(count: usize) -> Vec<CopyRequest> {
    (0..count as u64).map(|at| CopyRequest { target: at * 2, source: at * 2 + 1, bytes: 1 }).collect()
}

#[test]
fn batches_go_in_bounded_parts_in_stream_order() {
    let (_turn, api) = library();
    let driver = open(api);
    assert!(driver.has_batches());
    let many = requests(COPY_BATCH_MAX * 2 + 3);
    // SAFETY: this library copies nothing.
    unsafe { driver.copy_batch(&many, Stream(0x3000)) }.expect("it takes any");
    let in_stream_order = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM as u64;
    let part = COPY_BATCH_MAX as u64;
    let wanted = [(part, 0), (part, part * 2), (3, part * 4)];
    assert_eq!(noted("batch"), wanted.map(|(count, first)| vec![count, first, in_stream_order, 0, 1]));
    // SAFETY: as above.
    unsafe { driver.copy_batch(&[], Stream(0x3000)) }.expect("nothing is no failure");
    assert_eq!(noted("batch").len(), 3);
}

#[test]
fn only_a_batch_of_which_nothing_was_enqueued_is_unsupported() {
    let (_turn, api) = library();
    let driver = open(api);
    // SAFETY: this library copies nothing.
    let failed = unsafe { driver.copy_batch(&requests(1), Stream(0)) }.expect_err("not there");
    assert_eq!((failed.kind, noted("batch").len()), (DeviceErrorKind::Unsupported, 0));
    fail("batch", 801);
    // SAFETY: as above.
    let failed =
        unsafe { driver.copy_batch(&requests(COPY_BATCH_MAX + 1), Stream(1)) }.expect_err("told to fail");
    assert_eq!(failed.kind, DeviceErrorKind::Invalid, "the first part is enqueued");
    // SAFETY: as above.
    let failed = unsafe { driver.copy_batch(&requests(1), Stream(1)) }.expect_err("told to fail");
    assert_eq!(failed.kind, DeviceErrorKind::Unsupported, "nothing is");
}

#[test]
fn a_driver_without_batches_says_so() {
    let (_turn, _) = library();
    fail("cuGetProcAddress_v2", 500);
    // SAFETY: as in `library`.
    let api = unsafe { Api::resolve(find) }.expect("all that is required is there");
    let driver = open(Box::leak(Box::new(api)));
    assert!(!driver.has_batches());
    // SAFETY: this library copies nothing.
    let failed = unsafe { driver.copy_batch(&requests(1), Stream(1)) }.expect_err("there are none");
    assert_eq!(failed.kind, DeviceErrorKind::Unsupported);
}

#[test]
fn kernels_are_loaded_once_launched_in_shape_and_unloaded_in_their_context() {
    let (_turn, api) = library();
    let driver = open(api);
    assert_eq!(count("cuModuleLoadDataEx"), 0, "not before the first use");
    let checksum =
        |count| Kernel::Checksum { pieces: 0xA0, count, pages: 0xB0, page_count: 3, scratch: 1, output: 2 };
    let kernels = [
        Kernel::Copy { pieces: 0xC0, count: 7, blocks: 9 },
        Kernel::Copy { pieces: 0xC0, count: 7, blocks: 0 },
        Kernel::Copy { pieces: 0xC0, count: 7, blocks: u32::MAX },
        Kernel::Copy { pieces: 0xC0, count: 0, blocks: 9 },
        checksum(5),
        checksum(1000),
        checksum(0),
        Kernel::Sha256 { pieces: 0xD0, count: 33, output: 4 },
        Kernel::Sha256 { pieces: 0xD0, count: 0, output: 4 },
    ];
    for kernel in kernels {
        // SAFETY: this library runs nothing.
        unsafe { driver.launch(kernel, Stream(5)) }.expect("it takes any");
    }
    assert_eq!(
        noted("turnkv_copy"),
        [[9, 512, 0xC0], [1, 512, 0xC0], [u64::from(KERNEL_BLOCKS_MAX), 512, 0xC0]]
    );
    assert_eq!(noted("turnkv_checksum_by_block"), [[5, 256, 0xA0]]);
    assert_eq!(noted("turnkv_checksum_by_warp"), [[32, 256, 0xA0]]);
    assert_eq!(noted("turnkv_checksum_pages"), [[3, 32, 0xA0], [3, 32, 0xA0]]);
    assert_eq!(noted("turnkv_sha256"), [[2, 32, 0xD0]]);
    let module = noted("module");
    assert_eq!((module.len(), module[0][1], module[0][2]), (1, 2, OURS as u64));
    drop(driver);
    assert_eq!(noted("unload"), [[OURS as u64]]);
    assert_eq!(count("cuDevicePrimaryCtxRelease_v2"), 1);
    assert!(fake().contexts.is_empty());
}

#[test]
fn refused_kernels_are_unsupported_for_good_and_a_full_device_only_for_now() {
    let (_turn, api) = library();
    let driver = open(api);
    let launch = |driver: &CudaDriver| {
        // SAFETY: this library runs nothing.
        unsafe { driver.launch(Kernel::Copy { pieces: 8, count: 1, blocks: 1 }, Stream(5)) }
    };
    fail("cuModuleLoadDataEx", 2);
    assert_eq!(launch(&driver).expect_err("told to fail").kind, DeviceErrorKind::NoMemory);
    fake().codes.clear();
    launch(&driver).expect("there is memory again");

    let driver = open(api);
    let before = count("cuModuleLoadDataEx");
    fail("cuModuleLoadDataEx", 222);
    for _ in 0..3 {
        let failed = launch(&driver).expect_err("told to fail");
        assert_eq!(failed.kind, DeviceErrorKind::Unsupported);
        assert!(failed.message.contains("newer driver"), "{failed}");
    }
    assert_eq!(count("cuModuleLoadDataEx") - before, 1);

    fake().codes.clear();
    let driver = open(api);
    fail("cuModuleGetFunction", 500);
    assert_eq!(launch(&driver).expect_err("told to fail").kind, DeviceErrorKind::Unsupported);
    assert_eq!(noted("unload").len(), 1, "the half-loaded module");
}

#[test]
fn a_device_that_is_opened_has_every_function_launched_and_waited_for() {
    let (_turn, api) = library();
    let driver: Arc<dyn Driver> = Arc::new(open(api));
    assert_eq!(load_kernels(&driver), Ok(true));
    assert_eq!(count("cuModuleLoadDataEx"), 1);
    for function in FUNCTIONS {
        assert!(!noted(function).is_empty(), "{function} is left to the first copy");
    }
    assert_eq!(count("cuEventQuery"), 4, "every launch is waited for");
    assert_eq!((count("cuMemAlloc_v2"), count("cuMemHostAlloc")), (1, 1));
    assert_eq!((count("cuMemFree_v2"), count("cuMemFreeHost")), (1, 1), "and nothing is kept");
}

#[test]
fn a_device_without_our_kernels_opens_and_a_broken_one_does_not() {
    let (_turn, api) = library();
    let driver: Arc<dyn Driver> = Arc::new(open(api));
    fail("cuModuleLoadDataEx", 222);
    assert_eq!(load_kernels(&driver), Ok(false));
    fake().codes.clear();
    let driver: Arc<dyn Driver> = Arc::new(open(api));
    fail("cuEventQuery", 719);
    let before = count("cuMemFree_v2");
    assert_eq!(load_kernels(&driver).expect_err("told to fail").kind, DeviceErrorKind::Broken);
    assert_eq!(count("cuMemFree_v2"), before, "what a broken device has, it keeps");
}
