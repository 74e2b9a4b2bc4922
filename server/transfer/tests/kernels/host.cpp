// The kernels without a GPU: kernels.cu compiled as C++, a thread of a block as a fiber.
//
// Fibers switch at barriers and shuffles only, in an order that a seed shuffles anew each time, so that a missing barrier shows
// as a wrong result; a barrier that not all threads reach is a deadlock and ends the process. Shared memory is filled with
// noise before every block. Accesses that a GPU would refuse as misaligned end the process too.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include <algorithm>
#include <csetjmp>
#include <ucontext.h>

#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __constant__ const
#define __shared__ static __attribute__((section("shared")))
#define __launch_bounds__(threads)

struct Place {
    unsigned x;
};
static Place threadIdx, blockIdx, gridDim;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

[[noreturn]] static void die(const char *what) {
    std::fprintf(stderr, "kernels on the host: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    std::abort();
}

template <typename T> static T __ldcs(const T *from) {
    if ((uintptr_t)from % sizeof(T) != 0) die("a load is misaligned");
    return *from;
}
template <typename T> static void __stcs(T *to, T value) {
    if ((uintptr_t)to % sizeof(T) != 0) die("a store is misaligned");
    *to = value;
}

enum class State { Ready, AtBlock, AtWarp, Done };

struct Fiber {
    ucontext_t context; // where it begins: entered once, by a system call
    jmp_buf place;      // where it goes on: switches cost none
    bool begun;
    std::vector<char> stack;
    State state;
    unsigned long long shared_value;
};

static std::vector<Fiber> &fibers = *new std::vector<Fiber>; // never destroyed, as is the next
static ucontext_t first_scheduler; // never returned to
static jmp_buf scheduler;
static unsigned running;
static std::function<void()> &body = *new std::function<void()>;

static void pause(State state) {
    Fiber &me = fibers[running];
    me.state = state;
    if (_setjmp(me.place) == 0) _longjmp(scheduler, 1);
}

static void __syncthreads() { pause(State::AtBlock); }
static void __syncwarp() { pause(State::AtWarp); }

// The value that lane `from` of this warp has put up.
static unsigned long long exchange(unsigned long long value, unsigned from) {
    unsigned first = threadIdx.x / 32 * 32;
    fibers[threadIdx.x].shared_value = value;
    __syncwarp();
    unsigned long long got = fibers[first + from % 32].shared_value;
    __syncwarp();
    return got;
}
static unsigned long long __shfl_xor_sync(unsigned, unsigned long long value, unsigned mask) {
    return exchange(value, threadIdx.x % 32 ^ mask);
}
static unsigned long long __shfl_down_sync(unsigned, unsigned long long value, unsigned by) {
    unsigned lane = threadIdx.x % 32;
    return exchange(value, lane + by < 32 ? lane + by : lane);
}
static bool __any_sync(unsigned, bool value) {
    unsigned first = threadIdx.x / 32 * 32;
    fibers[threadIdx.x].shared_value = value;
    __syncwarp();
    bool any = false;
    for (unsigned lane = 0; lane < 32; lane++) any |= fibers[first + lane].shared_value != 0;
    __syncwarp();
    return any;
}

#include "../../src/device/kernels.cu"

extern char __start_shared[], __stop_shared[];

static void enter() {
    body();
    fibers[running].state = State::Done;
    _longjmp(scheduler, 1);
}

// Lets a fiber run until it pauses or ends.
static void resume(Fiber &fiber) {
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    swapcontext(&first_scheduler, &fiber.context);
}

// Whether all of these wait for the same; those that are done wait for nothing.
static bool all_at(unsigned first, unsigned end, State wanted) {
    bool any = false;
    for (unsigned at = first; at < end; at++) {
        if (fibers[at].state == State::Done) continue;
        if (fibers[at].state != wanted) return false;
        any = true;
    }
    return any;
}

static void release(unsigned first, unsigned end) {
    for (unsigned at = first; at < end; at++)
        if (fibers[at].state != State::Done) fibers[at].state = State::Ready;
}

static void run_block(unsigned threads, std::mt19937_64 &random) {
    for (char *at = __start_shared; at < __stop_shared; at++) *at = (char)random();
    fibers.resize(threads);
    for (Fiber &fiber : fibers) {
        fiber.stack.resize(64 << 10);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
        fiber.state = State::Ready;
        fiber.begun = false;
    }
    std::vector<unsigned> order(threads);
    for (unsigned at = 0; at < threads; at++) order[at] = at;
    for (;;) {
        std::shuffle(order.begin(), order.end(), random);
        bool ran = false;
        for (unsigned at : order) {
            if (fibers[at].state != State::Ready) continue;
            ran = true;
            running = at;
            threadIdx.x = at;
            resume(fibers[at]);
        }
        bool done = true;
        for (Fiber &fiber : fibers) done &= fiber.state == State::Done;
        if (done) return;
        for (unsigned first = 0; first < threads; first += 32)
            if (all_at(first, first + 32, State::AtWarp)) release(first, first + 32), ran = true;
        if (all_at(0, threads, State::AtBlock)) release(0, threads), ran = true;
        if (!ran) die("a barrier is not reached by all");
    }
}

static void launch(unsigned blocks, unsigned threads, uint64_t seed, std::function<void()> kernel) {
    std::mt19937_64 random(seed);
    body = kernel;
    gridDim.x = blocks;
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx.x = block;
        run_block(threads, random);
    }
}

extern "C" void run_copy(const Piece *pieces, u32 count, u32 blocks, u64 seed) {
    launch(blocks, COPY_THREADS, seed, [=] { turnkv_copy(pieces, count); });
}

extern "C" void run_checksum(const Piece *pieces, u32 count, const PagePieces *pages, u32 page_count, u64 *scratch,
                             u64 *output, u32 by_warp, u32 blocks, u64 seed) {
    launch(blocks, CHECKSUM_THREADS, seed, [=] {
        if (by_warp) turnkv_checksum_by_warp(pieces, count, scratch);
        else turnkv_checksum_by_block(pieces, count, scratch);
    });
    launch(blocks, WARP, seed + 1, [=] { turnkv_checksum_pages(pieces, pages, page_count, scratch, output); });
}

extern "C" void run_sha256(const Piece *pieces, u32 count, u8 *output, u32 blocks, u64 seed) {
    launch(blocks, WARP, seed, [=] { turnkv_sha256(pieces, count, output); });
}
