// A stand-in for an engine's large kernels (interference.py): one block on every multiprocessor, with so much shared memory that
// nothing else of any size fits beside it, and arithmetic for as long as it is told. A block that finds its multiprocessor taken
// waits for a second wave. kernels.py makes stand_in.ptx of it.

typedef unsigned int u32;

extern "C" __global__ void __launch_bounds__(256) stand_in(u32 rounds, u32 words, float *out) {
    extern __shared__ float tile[];
    const u32 thread = threadIdx.x, threads = blockDim.x;
    for (u32 at = thread; at < words; at += threads) tile[at] = (float)(at & 7) * 0.125f;
    __syncthreads();
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (u32 at = 0; at < 8; at++) sum[at] = sum[at] * 0.5f + tile[(thread + round * 37 + at * threads) % words];
    }
    float all = 0;
#pragma unroll
    for (u32 at = 0; at < 8; at++) all += sum[at];
    out[blockIdx.x * threads + thread] = all;
}
