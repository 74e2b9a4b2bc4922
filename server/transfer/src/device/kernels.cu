// The kernels behind the seam (driver.rs, `Kernel`): copies of pieces, CRC-64/NVME of pages, SHA-256 of pieces.
// Owns: the arithmetic on the device. Must not know: pages of a pool, slots, plans; it reads tables of pieces.
//
// Plain CUDA C++ without headers, for any device from compute 7.5 on. kernels.sh makes kernels.ptx of it. The tests compile
// it as C++ too, with threads that are not a GPU's (tests/kernels/), and compare with the CPU's own functions.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// As driver.rs has them.
struct Piece {
    u64 target;
    u64 source; // 0: so many zeros
    u64 bytes;
};
struct PagePieces {
    u32 first;
    u32 count;
};

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// ---- copies ----

// Threads of a block; module.rs has it too. A block looks at as many pieces at a time.
constexpr u32 COPY_THREADS = 512;
constexpr u32 COPY_WARPS = COPY_THREADS / WARP;
// Accesses of 16 bytes that a thread has in flight: over PCIe every one takes a microsecond or two, and a few blocks must
// fill the link. 512 threads x 8 x 16 bytes are 64 KiB a block.
constexpr u32 COPY_IN_FLIGHT = 8;
// What a warp copies at a time.
constexpr u64 COPY_TILE_BYTES = WARP * COPY_IN_FLIGHT * 16;

// A warp copies `bytes` bytes, at most a tile, whose addresses leave the same remainder of 16.
static __device__ __forceinline__ void copy_vectors(u8 *target, const u8 *source, u64 bytes, u32 lane) {
    u64 head = (16 - ((u64)target & 15)) & 15;
    if (head > bytes) head = bytes;
    if (lane < head) target[lane] = source[lane];
    u32 vectors = (u32)((bytes - head) / 16);
    const uint4 *from = (const uint4 *)(source + head) + lane;
    uint4 *to = (uint4 *)(target + head) + lane;
    int left = (int)vectors - (int)lane; // counted from our first one; all distances below are constants
    uint4 held[COPY_IN_FLIGHT];
#pragma unroll
    for (int at = 0; at < (int)COPY_IN_FLIGHT; at++) {
        // Read once and written once: neither is worth a place in a cache that the engine uses.
        if (at * (int)WARP < left) held[at] = __ldcs(from + at * WARP);
    }
#pragma unroll
    for (int at = 0; at < (int)COPY_IN_FLIGHT; at++) {
        if (at * (int)WARP < left) __stcs(to + at * WARP, held[at]);
    }
    u64 done = head + 16 * (u64)vectors;
    if (done + lane < bytes) target[done + lane] = source[done + lane];
}

// The same for addresses with different remainders: 16-byte accesses would need shifting, and such pieces are rare.
static __device__ __forceinline__ void copy_bytes(u8 *target, const u8 *source, u64 bytes, u32 lane) {
#pragma unroll 4
    for (u64 at = lane; at < bytes; at += WARP) target[at] = source[at];
}

// All warps of the grid share the tiles of all pieces evenly: warp w takes tiles w, w + all warps, ... in the order of the
// table, whatever the sizes of the pieces are.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) turnkv_copy(const Piece *pieces, u32 count) {
    __shared__ Piece part[COPY_THREADS];
    __shared__ u64 ends[COPY_THREADS]; // the number of tiles of pieces 0..=i of this part
    const u32 thread = threadIdx.x, lane = thread % WARP;
    const u64 warps = (u64)gridDim.x * COPY_WARPS;
    u64 next = (u64)blockIdx.x * COPY_WARPS + thread / WARP; // our next tile, counted from the start of this part
    for (u32 first = 0; first < count; first += COPY_THREADS) {
        u32 here = count - first < COPY_THREADS ? count - first : COPY_THREADS;
        u64 tiles = 0;
        if (thread < here) {
            part[thread] = pieces[first + thread];
            tiles = (part[thread].bytes + COPY_TILE_BYTES - 1) / COPY_TILE_BYTES;
        }
        ends[thread] = tiles;
        __syncthreads();
        for (u32 reach = 1; reach < COPY_THREADS; reach *= 2) {
            u64 before = thread >= reach ? ends[thread - reach] : 0;
            __syncthreads();
            ends[thread] += before;
            __syncthreads();
        }
        u64 all = ends[COPY_THREADS - 1];
        for (; next < all; next += warps) {
            u32 low = 0, high = here - 1;
            while (low < high) { // the first piece that ends after this tile begins
                u32 middle = (low + high) / 2;
                if (ends[middle] > next) high = middle;
                else low = middle + 1;
            }
            u64 offset = (next - (low == 0 ? 0 : ends[low - 1])) * COPY_TILE_BYTES;
            u64 left = part[low].bytes - offset;
            u64 bytes = left < COPY_TILE_BYTES ? left : COPY_TILE_BYTES;
            u8 *target = (u8 *)(part[low].target + offset);
            const u8 *source = (const u8 *)(part[low].source + offset);
            if (((part[low].target ^ part[low].source) & 15) == 0) copy_vectors(target, source, bytes, lane);
            else copy_bytes(target, source, bytes, lane);
        }
        next -= all;
        __syncthreads(); // the table of this part is out of use
    }
}

// ---- CRC-64/NVME ----
//
// Bytes are polynomials over GF(2), reflected: bit 63 of a word is x^0, the first byte of a message has its highest powers.
// With register 0 before and nothing added after, the CRC of a message m is m * x^64 mod P, which is linear: the parts of a
// message can be taken by different threads and are put together by multiplying each with x^(8 * bytes that follow it).
// Leading zeros change nothing, so a message can be filled up in front. The checksum proper starts from all ones and ends by
// inverting: turnkv_checksum_pages does that once a page.

constexpr u64 POLYNOMIAL = 0x9a6c9329ac4bc9b5ull;
constexpr u64 ONE = 0x8000000000000000ull; // x^0

constexpr u32 CHECKSUM_THREADS = 256; // module.rs has it too
constexpr u32 CHECKSUM_IN_FLIGHT = 4; // loads of 16 bytes that a thread has in flight

// x^(8 * 2^i) mod P.
static __constant__ u64 POWERS[48] = {
    0x0080000000000000ull, 0x0000800000000000ull, 0x0000000080000000ull, 0x9a6c9329ac4bc9b5ull,
    0x10f4bb0f129310d6ull, 0x70f05dcea2ebd226ull, 0x311211205672822dull, 0x2fc297db0f46c96eull,
    0xca4d536fabf7da84ull, 0xfb4cdc3b379ee6edull, 0xea261148df25140aull, 0x59ccb2c07aa6c9b4ull,
    0x20b3674a839af27aull, 0x2d8e1986da94d583ull, 0x42cdf4c20337635dull, 0x1d78724bf0f26839ull,
    0xb96c84e0afb34bd5ull, 0x5d2e1fcd2df0a3eaull, 0xcd9506572332be42ull, 0x23bda2427f7d690full,
    0x347a953232374f07ull, 0x1c2a807ac2a8ceeaull, 0x9b92ad0e14fe1460ull, 0x2574114889f670b2ull,
    0x4a84a6c45e3bf520ull, 0x915bbac21cd1c7ffull, 0xb0290ec579f291f5ull, 0xcf2548505c624e6eull,
    0xb154f27bf08a8207ull, 0xce4e92344baf7d35ull, 0x51da8d7e057c5eb3ull, 0x9fb10823f5be15dfull,
    0x73b825b3ff1f71cfull, 0x5db436c5406ebb74ull, 0xfa7ed8f3ec3f2bcaull, 0xc4d58efdc61b9ef6ull,
    0xa7e39e61e855bd45ull, 0x97ad46f9dd1bf2f1ull, 0x1a0abb01f853ee6bull, 0x3f0827c3348f8215ull,
    0x4eb68c4506134607ull, 0x4a46f6de5df34e0aull, 0x2d855d6a1c57a8ddull, 0x8688da58e1115812ull,
    0x5232f417fc7c7300ull, 0xa4080fb2e767d8daull, 0xd515a7e17693e562ull, 0x1181f7c862e94226ull,
};

static __device__ __forceinline__ u64 times_x(u64 value) { return (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0); }

// a * b mod P. Called, not written out at every place: it is long, and never in the innermost loops.
static __device__ __noinline__ u64 multiply(u64 a, u64 b) {
    u64 product = 0;
#pragma unroll 8
    for (u32 bit = 0; bit < 64; bit++) {
        product ^= b & ONE ? a : 0;
        a = times_x(a);
        b <<= 1;
    }
    return product;
}

// x^(8 * bytes) mod P: one multiplication for every bit of `bytes` but the first. Lengths are powers of two most often.
static __device__ u64 power_of_bytes(u64 bytes) {
    u64 power = ONE;
    bool first = true;
    for (u32 bit = 0; bit < 48 && bytes >> bit; bit++) {
        if (bytes >> bit & 1) {
            power = first ? POWERS[bit] : multiply(power, POWERS[bit]);
            first = false;
        }
    }
    return power;
}

// A table for multiplying by one constant: 16 products for each of 16 half bytes. 16 words of 8 bytes are 32 banks: whatever
// the lanes of a warp ask of a row, no two different words are in one bank.
struct Multiples {
    u64 of[16][16];
};

// All 256 threads of a block fill the table.
static __device__ __forceinline__ void fill(Multiples *table, u64 constant, u32 thread) {
    table->of[thread / 16][thread % 16] = multiply((u64)(thread % 16) << (thread / 16 * 4), constant);
}

static __device__ __forceinline__ u64 times(const Multiples *table, u64 value) {
    u64 product = 0;
#pragma unroll
    for (u32 half = 0; half < 16; half++) product ^= table->of[half][value >> (4 * half) & 15];
    return product;
}

// The 16-byte word at `address`, a multiple of 16, with zeros for what lies before `start`.
static __device__ __forceinline__ ulonglong2 first_word(u64 address, u64 start) {
    ulonglong2 word = {0, 0};
#pragma unroll 1
    for (u32 at = (u32)(start - address); at < 16; at++) {
        u64 byte = *(const u8 *)(address + at);
        if (at < 8) word.x |= byte << (8 * at);
        else word.y |= byte << (8 * (at - 8));
    }
    return word;
}

// The CRC (register 0 before, nothing added after) of a piece by `team` threads, of which this is number `member`: member's
// share of the sum, all shares to be added. Words of 16 bytes are dealt out in turn, so that loads are coalesced; `row` is
// multiplication by x^(128 * team), `half` by x^64, `weight` is x^(128 * (team - 1 - member) + 64).
static __device__ u64 share_of(u64 source, u64 bytes, u32 team, u32 member, const Multiples *row,
                               const Multiples *half, u64 weight) {
    u64 begin = source & ~15ull, end = (source + bytes) & ~15ull;
    if (end <= begin || end <= source) return 0; // all of it is tail
    u64 words = (end - begin) / 16;
    u64 rows = (words + team - 1) / team;
    u64 filled = rows * team - words; // places in front that hold zeros
    u64 first = 0, second = 0;        // the halves of our words, each as one number
    for (u64 at = 0; at < rows; at += CHECKSUM_IN_FLIGHT) {
        ulonglong2 held[CHECKSUM_IN_FLIGHT];
#pragma unroll
        for (u32 ahead = 0; ahead < CHECKSUM_IN_FLIGHT; ahead++) {
            u64 place = (at + ahead) * team + member;
            held[ahead] = ulonglong2{0, 0};
            if (at + ahead >= rows || place < filled) continue;
            u64 address = begin + 16 * (place - filled);
            held[ahead] = address < source ? first_word(address, source) : __ldcs((const ulonglong2 *)address);
        }
#pragma unroll
        for (u32 ahead = 0; ahead < CHECKSUM_IN_FLIGHT; ahead++) {
            if (at + ahead >= rows) break;
            first = times(row, first) ^ held[ahead].x;
            second = times(row, second) ^ held[ahead].y;
        }
    }
    return multiply(times(half, first) ^ second, weight);
}

// The register after the last bytes of a piece, fewer than 16, that no word of `share_of` covers.
static __device__ u64 add_tail(u64 value, u64 source, u64 bytes) {
    u64 end = (source + bytes) & ~15ull;
    for (u64 address = end > source ? end : source; address < source + bytes; address++) {
        value ^= *(const u8 *)address;
        for (u32 bit = 0; bit < 8; bit++) value = times_x(value);
    }
    return value;
}

static __device__ __forceinline__ u64 sum_of_warp(u64 value) {
#pragma unroll
    for (u32 reach = WARP / 2; reach > 0; reach /= 2) value ^= __shfl_xor_sync(ALL_LANES, value, reach);
    return value;
}

// A warp takes each piece. The tables are filled by the whole block; after that no warp waits for another.
extern "C" __global__ void __launch_bounds__(CHECKSUM_THREADS)
    turnkv_checksum_by_warp(const Piece *pieces, u32 count, u64 *scratch) {
    __shared__ Multiples row, half;
    const u32 thread = threadIdx.x, lane = thread % WARP;
    fill(&row, power_of_bytes(16 * WARP), thread);
    fill(&half, power_of_bytes(8), thread);
    __syncthreads();
    const u64 weight = power_of_bytes(16 * (WARP - 1 - lane) + 8);
    const u32 warps = CHECKSUM_THREADS / WARP;
    for (u64 at = (u64)blockIdx.x * warps + thread / WARP; at < count; at += (u64)gridDim.x * warps) {
        Piece piece = pieces[at];
        u64 value = 0; // that of zeros
        if (piece.source != 0) {
            value = sum_of_warp(share_of(piece.source, piece.bytes, WARP, lane, &row, &half, weight));
            value = add_tail(value, piece.source, piece.bytes);
        }
        if (lane == 0) scratch[at] = value;
    }
}

// A block takes each piece: for few pieces.
extern "C" __global__ void __launch_bounds__(CHECKSUM_THREADS)
    turnkv_checksum_by_block(const Piece *pieces, u32 count, u64 *scratch) {
    __shared__ Multiples row, half;
    __shared__ u64 sums[CHECKSUM_THREADS / WARP];
    const u32 thread = threadIdx.x;
    fill(&row, power_of_bytes(16 * CHECKSUM_THREADS), thread);
    fill(&half, power_of_bytes(8), thread);
    const u64 weight = power_of_bytes(16 * (CHECKSUM_THREADS - 1 - thread) + 8);
    for (u64 at = blockIdx.x; at < count; at += gridDim.x) {
        Piece piece = pieces[at];
        __syncthreads(); // the tables are there; nobody reads the sums of the last piece any more
        u64 share = 0;
        if (piece.source != 0)
            share = share_of(piece.source, piece.bytes, CHECKSUM_THREADS, thread, &row, &half, weight);
        share = sum_of_warp(share);
        if (thread % WARP == 0) sums[thread / WARP] = share;
        __syncthreads();
        if (thread == 0) {
            u64 value = 0;
            for (u32 warp = 0; warp < CHECKSUM_THREADS / WARP; warp++) value ^= sums[warp];
            scratch[at] = piece.source != 0 ? add_tail(value, piece.source, piece.bytes) : 0;
        }
    }
}

// A warp puts together each page: a lane takes neighbouring pieces, then neighbouring lanes join.
extern "C" __global__ void __launch_bounds__(WARP)
    turnkv_checksum_pages(const Piece *pieces, const PagePieces *pages, u32 page_count, const u64 *scratch,
                          u64 *output) {
    const u32 lane = threadIdx.x;
    for (u64 at = blockIdx.x; at < page_count; at += gridDim.x) {
        PagePieces page = pages[at];
        u32 each = (page.count + WARP - 1) / WARP;
        u32 begin = lane * each < page.count ? lane * each : page.count;
        u32 end = begin + each < page.count ? begin + each : page.count;
        // The CRC of our bytes, and x^(8 * how many they are).
        u64 value = 0, power = ONE, bytes = ~0ull, step = 0;
        for (u32 place = begin; place < end; place++) {
            u64 these = pieces[(u64)page.first + place].bytes;
            if (these != bytes) { // most pieces of a page are of one size
                bytes = these;
                step = power_of_bytes(bytes);
            }
            value = multiply(value, step) ^ scratch[(u64)page.first + place];
            power = multiply(power, step);
        }
        for (u32 reach = 1; reach < WARP; reach *= 2) {
            // Lanes at multiples of 2 * reach take in what follows; what the others make of it is never used.
            u64 next_value = __shfl_down_sync(ALL_LANES, value, reach);
            u64 next_power = __shfl_down_sync(ALL_LANES, power, reach);
            value = multiply(value, next_power) ^ next_value;
            power = multiply(power, next_power);
        }
        if (lane == 0) output[at] = ~(value ^ multiply(~0ull, power));
    }
}

// ---- SHA-256 ----
//
// A thread hashes a piece: the rounds of one message depend on each other, so the work in parallel is that of many pieces.
// The lanes of a warp load each other's bytes, 128 of a piece at a time, so that loads are coalesced.

constexpr u32 SHA_WORDS = 32; // words of 4 bytes of each piece that are held: two blocks of the hash
constexpr u32 SHA_IN_FLIGHT = 16; // loads that a thread has in flight

static __constant__ u32 ROUND_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

struct Sha256State {
    u32 of[8];
};

static __device__ __forceinline__ u32 rotate(u32 value, u32 by) { return value >> by | value << (32 - by); }

static __device__ __forceinline__ u32 swap(u32 value) {
    return value >> 24 | (value >> 8 & 0xff00) | (value << 8 & 0xff0000) | value << 24;
}

// Word `place` of a message of `bytes` bytes as SHA-256 reads it: its bytes, then 0x80, zeros and the number of its bits.
static __device__ __forceinline__ u32 padded(u32 raw, u64 place, u64 bytes, u64 words) {
    u64 start = 4 * place;
    if (start + 4 <= bytes) return swap(raw);
    if (place == words - 2) return (u32)(bytes >> 29);
    if (place == words - 1) return (u32)(bytes << 3);
    if (start > bytes) return 0;
    u32 kept = (u32)(bytes - start); // 0 to 3
    u32 mask = kept == 0 ? 0 : ~0u << (32 - 8 * kept);
    return (swap(raw) & mask) | 0x80000000u >> (8 * kept);
}

static __device__ __forceinline__ void compress(Sha256State *state, u32 (&message)[16]) {
    u32 a = state->of[0], b = state->of[1], c = state->of[2], d = state->of[3];
    u32 e = state->of[4], f = state->of[5], g = state->of[6], h = state->of[7];
#pragma unroll
    for (u32 round = 0; round < 64; round++) {
        u32 word = message[round % 16];
        if (round >= 16) {
            u32 early = message[(round + 1) % 16], late = message[(round + 14) % 16];
            word += (rotate(early, 7) ^ rotate(early, 18) ^ early >> 3) + message[(round + 9) % 16] +
                    (rotate(late, 17) ^ rotate(late, 19) ^ late >> 10);
            message[round % 16] = word;
        }
        u32 one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + ROUND_CONSTANTS[round] + word;
        u32 two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    state->of[0] += a, state->of[1] += b, state->of[2] += c, state->of[3] += d;
    state->of[4] += e, state->of[5] += f, state->of[6] += g, state->of[7] += h;
}

// Four bytes of a piece from `offset` on, zeros for what lies behind its end.
static __device__ __forceinline__ u32 load_word(u64 source, u64 bytes, u64 offset) {
    u64 address = source + offset;
    if ((address & 3) == 0 && offset + 4 <= bytes) return __ldcs((const u32 *)address);
    u32 word = 0;
#pragma unroll 1
    for (u32 at = 0; at < 4 && offset + at < bytes; at++) word |= (u32) * (const u8 *)(address + at) << (8 * at);
    return word;
}

extern "C" __global__ void __launch_bounds__(WARP) turnkv_sha256(const Piece *pieces, u32 count, u8 *output) {
    __shared__ u32 held[WARP][SHA_WORDS + 1]; // one word more a row: lanes that read a column are in different banks
    __shared__ u64 sources[WARP], sizes[WARP];
    const u32 lane = threadIdx.x;
    for (u64 first = (u64)blockIdx.x * WARP; first < count; first += (u64)gridDim.x * WARP) {
        bool mine = first + lane < count;
        u64 bytes = mine ? pieces[first + lane].bytes : 0;
        sources[lane] = mine ? pieces[first + lane].source : 0;
        sizes[lane] = bytes;
        u64 words = mine ? (bytes + 9 + 63) / 64 * 16 : 0; // of the message with its padding
        Sha256State state = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                              0x5be0cd19}};
        for (u64 place = 0; __any_sync(ALL_LANES, place < words); place += SHA_WORDS) {
            __syncwarp();
            for (u32 from = 0; from < WARP; from += SHA_IN_FLIGHT) {
                u32 raw[SHA_IN_FLIGHT];
#pragma unroll
                for (u32 at = 0; at < SHA_IN_FLIGHT; at++)
                    raw[at] = load_word(sources[from + at], sizes[from + at], 4 * (place + lane));
#pragma unroll
                for (u32 at = 0; at < SHA_IN_FLIGHT; at++) held[from + at][lane] = raw[at];
            }
            __syncwarp();
            for (u32 block = 0; block < SHA_WORDS && place + block < words; block += 16) {
                u32 message[16];
#pragma unroll
                for (u32 at = 0; at < 16; at++)
                    message[at] = padded(held[lane][block + at], place + block + at, bytes, words);
                compress(&state, message);
            }
        }
        __syncwarp();
        if (mine) {
            for (u32 at = 0; at < 32; at++)
                output[(first + lane) * 32 + at] = (u8)(state.of[at / 4] >> (24 - at % 4 * 8));
        }
    }
}
