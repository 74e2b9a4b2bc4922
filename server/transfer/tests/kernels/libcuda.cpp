// A CUDA driver library without a GPU: NVIDIA's function names over this machine's memory, with the kernels of host.cpp. Loaded in
// the place of the real one, it shows that what our driver finds, calls, passes and launches fits together.
//
// It does everything in the call itself: order is the host device's affair (src/device/host). It is strict in what a GPU is strict
// in: a call outside a context, memory that nobody took or registered, a batch with attributes it does not know, are errors.
//
// Device memory lies in memfds, so that what is exported of it as a dma-buf is a descriptor that can be mapped.
//
// It fails when the environment says so: TEST_CUDA_REGISTER=<number> is what registrations return, and a batch of at least
// TEST_CUDA_HANG_AT copies never ends, nor does anything after it. TEST_CUDA_DMA_BUF=0: the device has no dma-bufs.

#include "host.cpp"

#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

// Never destroyed: threads of the process under test may call while it ends.
static std::recursive_mutex &turn = *new std::recursive_mutex;
static std::map<u64, u64> &memory = *new std::map<u64, u64>; // start -> bytes, of all that the device may use
static std::map<u64, int> &files = *new std::map<u64, int>;  // start -> memfd, of device memory
static thread_local std::vector<void *> contexts;
static void *const OURS = (void *)0x51;

static const u32 INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, REGISTERED = 712;

static u64 setting(const char *name, u64 usual) {
    const char *text = getenv(name);
    return text != nullptr ? strtoull(text, nullptr, 10) : usual;
}
static bool hangs = false;

#define CALL(name, ...) extern "C" u32 name(__VA_ARGS__)
#define IN_CONTEXT                                                                                                     \
    std::lock_guard<std::recursive_mutex> lock(turn);                                                                  \
    if (contexts.empty() || contexts.back() != OURS) return INVALID_CONTEXT

static bool known(u64 address, u64 bytes) {
    auto next = memory.upper_bound(address);
    if (next == memory.begin()) return false;
    --next;
    return address + bytes <= next->first + next->second;
}

static u32 take(u64 *address, size_t align, size_t bytes) {
    void *found = nullptr;
    if (bytes == 0 || posix_memalign(&found, align, bytes) != 0) return INVALID_VALUE;
    memset(found, 0x5e, bytes);
    *address = (u64)found;
    memory[*address] = bytes;
    return 0;
}

static u32 give(u64 address) {
    if (memory.erase(address) == 0) return INVALID_VALUE;
    free((void *)address);
    return 0;
}

CALL(cuInit, u32) { return 0; }
CALL(cuDriverGetVersion, int *version) { return *version = 13000, 0; }
CALL(cuGetErrorName, u32, const char **words) { return *words = "CUDA_ERROR_OF_A_TEST", 0; }
CALL(cuGetErrorString, u32, const char **words) { return *words = "a library without a GPU", 0; }
CALL(cuDeviceGetCount, int *count) { return *count = 1, 0; }
CALL(cuDeviceGet, int *device, int ordinal) { return *device = ordinal, ordinal == 0 ? 0 : 101; }
CALL(cuDeviceGetName, char *name, int bytes, int) { return snprintf(name, bytes, "no GPU at all"), 0; }
CALL(cuDeviceGetAttribute, int *value, int which, int) {
    return *value = which == 124 ? (int)setting("TEST_CUDA_DMA_BUF", 1) : 1, 0; // 118 is 1, too: no order of NICs' writes
}
CALL(cuDeviceGetPCIBusId, char *name, int bytes, int) { return snprintf(name, bytes, "ffff:ff:1f.7"), 0; }
CALL(cuDevicePrimaryCtxRetain, void **context, int) { return *context = OURS, 0; }
CALL(cuDevicePrimaryCtxRelease_v2, int) { return 0; }
CALL(cuCtxGetCurrent, void **context) { return *context = contexts.empty() ? nullptr : contexts.back(), 0; }
CALL(cuCtxPushCurrent_v2, void *context) { return contexts.push_back(context), 0; }
CALL(cuCtxPopCurrent_v2, void **context) {
    if (contexts.empty()) return INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return 0;
}
CALL(cuThreadExchangeStreamCaptureMode, int *mode) {
    static thread_local int current = 0;
    std::swap(current, *mode);
    return 0;
}

CALL(cuCtxGetStreamPriorityRange, int *least, int *greatest) {
    IN_CONTEXT;
    return *least = 0, *greatest = -5, 0;
}
CALL(cuMemGetInfo_v2, size_t *free_bytes, size_t *total) {
    IN_CONTEXT;
    return *free_bytes = (size_t)1 << 33, *total = (size_t)1 << 33, 0;
}
CALL(cuMemAlloc_v2, u64 *address, size_t bytes) {
    IN_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    int file = memfd_create("test-cuda", MFD_CLOEXEC);
    void *found = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0)
        found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) return file >= 0 ? close(file), OUT_OF_MEMORY : OUT_OF_MEMORY;
    memset(found, 0x5e, bytes);
    *address = (u64)found;
    memory[*address] = bytes;
    files[*address] = file;
    return 0;
}
CALL(cuMemFree_v2, u64 address) {
    IN_CONTEXT;
    auto file = files.find(address);
    if (file == files.end()) return INVALID_VALUE;
    munmap((void *)address, memory[address]);
    close(file->second);
    files.erase(file);
    memory.erase(address);
    return 0;
}
CALL(cuMemGetHandleForAddressRange, int *handle, u64 address, size_t bytes, u32 kind, unsigned long long flags) {
    IN_CONTEXT;
    auto file = files.find(address);
    if (kind != 1 || flags != 0 || bytes == 0 || bytes % 4096 != 0 || file == files.end() || !known(address, bytes))
        return INVALID_VALUE;
    return *handle = dup(file->second), *handle >= 0 ? 0 : OUT_OF_MEMORY;
}
CALL(cuFlushGPUDirectRDMAWrites, u32 target, u32 scope) {
    IN_CONTEXT;
    return target == 0 && scope == 100 ? 0 : INVALID_VALUE;
}
CALL(cuMemHostAlloc, u64 *address, size_t bytes, u32 flags) {
    IN_CONTEXT;
    return flags & 4 ? INVALID_VALUE : take(address, 4096, bytes); // write-combined: never
}
CALL(cuMemFreeHost, u64 address) {
    IN_CONTEXT;
    return give(address);
}
CALL(cuMemHostRegister_v2, u64 address, size_t bytes, u32) {
    IN_CONTEXT;
    if (bytes == 0 || address % 4096 != 0) return INVALID_VALUE;
    if (u64 code = setting("TEST_CUDA_REGISTER", 0)) return (u32)code;
    if (known(address, 1)) return REGISTERED;
    memory[address] = bytes;
    return 0;
}
CALL(cuMemHostUnregister, u64 address) {
    IN_CONTEXT;
    return memory.erase(address) == 1 ? 0 : INVALID_VALUE;
}

static u64 handles = 0x1000;
CALL(cuStreamCreateWithPriority, u64 *stream, u32 flags, int priority) {
    IN_CONTEXT;
    if (flags != 1 || priority > 0 || priority < -5) return INVALID_VALUE;
    return *stream = ++handles, 0;
}
CALL(cuStreamDestroy_v2, u64) {
    IN_CONTEXT;
    return 0;
}
CALL(cuStreamIsCapturing, u64, u32 *status) {
    IN_CONTEXT;
    return *status = 0, 0;
}
CALL(cuStreamWaitEvent, u64, u64, u32 flags) {
    IN_CONTEXT;
    return flags;
}
CALL(cuEventCreate, u64 *event, u32 flags) {
    IN_CONTEXT;
    return *event = ++handles, flags == 2 ? 0 : INVALID_VALUE;
}
CALL(cuEventDestroy_v2, u64) {
    IN_CONTEXT;
    return 0;
}
CALL(cuEventRecord, u64, u64) {
    IN_CONTEXT;
    return 0;
}
CALL(cuEventQuery, u64) {
    IN_CONTEXT;
    return hangs ? NOT_READY : 0;
}

CALL(cuMemcpyAsync, u64 target, u64 source, size_t bytes, u64) {
    IN_CONTEXT;
    if (!known(target, bytes) || !known(source, bytes)) return ILLEGAL_ADDRESS;
    return memcpy((void *)target, (const void *)source, bytes), 0;
}

struct Attributes { // CUmemcpyAttributes of CUDA 12.8
    int order;
    int hints[4];
    u32 flags;
};
static u32 batch(u64 *targets, u64 *sources, size_t *sizes, size_t count, Attributes *attributes, size_t *places,
                 size_t attribute_count, size_t *failed, u64 stream) {
    if (attribute_count != 1 || places[0] != 0 || attributes->order != 1 || attributes->flags != 0 || stream == 0)
        return INVALID_VALUE;
    hangs = hangs || count >= setting("TEST_CUDA_HANG_AT", ~0ull);
    for (size_t at = 0; at < count; at++) {
        *failed = at;
        u32 code = cuMemcpyAsync(targets[at], sources[at], sizes[at], stream);
        if (code != 0) return code;
    }
    return 0;
}
CALL(cuGetProcAddress_v2, const char *name, void **found, int version, u64, void *) {
    if (strcmp(name, "cuMemcpyBatchAsync") != 0 || version != 12080) return NOT_FOUND;
    return *found = (void *)batch, 0;
}

static const char *const NAMES[] = {"turnkv_copy", "turnkv_checksum_by_warp", "turnkv_checksum_by_block",
                                    "turnkv_checksum_pages", "turnkv_sha256"};
CALL(cuModuleLoadDataEx, u64 *module, const char *text, u32, void *, void *) {
    IN_CONTEXT;
    return *module = 1, strstr(text, ".visible .entry turnkv_copy(") != nullptr ? 0 : 218;
}
CALL(cuModuleGetFunction, u64 *function, u64, const char *name) {
    IN_CONTEXT;
    for (u64 at = 0; at < 5; at++)
        if (strcmp(name, NAMES[at]) == 0) return *function = at + 1, 0;
    return NOT_FOUND;
}
CALL(cuModuleUnload, u64) {
    IN_CONTEXT;
    return 0;
}

// An argument as the kernel's declaration has it.
template <typename T> static T argument(void **arguments, u32 at) { return *(T *)arguments[at]; }

CALL(cuLaunchKernel, u64 function, u32 x, u32 y, u32 z, u32 threads, u32 ty, u32 tz, u32 shared, u64, void **arguments,
     void **) {
    IN_CONTEXT;
    static const u32 THREADS[] = {COPY_THREADS, CHECKSUM_THREADS, CHECKSUM_THREADS, WARP, WARP};
    if (x == 0 || y != 1 || z != 1 || ty != 1 || tz != 1 || shared != 0) return INVALID_VALUE;
    if (function < 1 || function > 5 || threads != THREADS[function - 1]) return INVALID_VALUE;
    const Piece *pieces = argument<const Piece *>(arguments, 0);
    switch (function) {
    case 1:
        launch(x, threads, x, [=] { turnkv_copy(pieces, argument<u32>(arguments, 1)); });
        return 0;
    case 2:
        launch(x, threads, x,
               [=] { turnkv_checksum_by_warp(pieces, argument<u32>(arguments, 1), argument<u64 *>(arguments, 2)); });
        return 0;
    case 3:
        launch(x, threads, x,
               [=] { turnkv_checksum_by_block(pieces, argument<u32>(arguments, 1), argument<u64 *>(arguments, 2)); });
        return 0;
    case 4:
        launch(x, threads, x, [=] {
            turnkv_checksum_pages(pieces, argument<const PagePieces *>(arguments, 1), argument<u32>(arguments, 2),
                                  argument<const u64 *>(arguments, 3), argument<u64 *>(arguments, 4));
        });
        return 0;
    default:
        launch(x, threads, x,
               [=] { turnkv_sha256(pieces, argument<u32>(arguments, 1), argument<u8 *>(arguments, 2)); });
        return 0;
    }
}
