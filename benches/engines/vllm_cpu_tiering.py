"""Lets vLLM's own tiered offloading run without a GPU, as a peer of `side_by_side.py`: block copies by torch on threads.

Loaded by vLLM through `spec_module_path`. Owns: copies between KV blocks and vLLM's host region. Must not know: tiers, files.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

COPY_THREADS = 2


class TorchCopies(OffloadingWorker):
    """Moves whole blocks; one chunk of the host region holds one block."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._sides = []
        for cache in caches.tensors:
            blocks = cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            self._sides.append((blocks, region.create_next_worker_view(cache.page_size_bytes)))
        self._threads = ThreadPoolExecutor(COPY_THREADS)
        self._jobs: dict[int, Future[TransferResult]] = {}

    def submit_store(self, job_id, src_spec, dst_spec) -> bool:
        self._jobs[job_id] = self._threads.submit(self._copy, job_id, src_spec.block_ids, dst_spec.block_ids, True)
        return True

    def submit_load(self, job_id, src_spec, dst_spec, expedited: bool = False) -> bool:
        self._jobs[job_id] = self._threads.submit(self._copy, job_id, dst_spec.block_ids, src_spec.block_ids, False)
        return True

    def get_finished(self) -> list[TransferResult]:
        done = [job for job, result in self._jobs.items() if result.done()]
        return [self._jobs.pop(job).result() for job in done]

    def wait(self, job_ids) -> None:
        for job in job_ids:
            if job in self._jobs:
                self._jobs[job].result()

    def shutdown(self) -> None:
        self._threads.shutdown()
        self._sides.clear()
        self._region.cleanup()

    def _copy(self, job: int, blocks, chunks, store: bool) -> TransferResult:
        began, moved = time.perf_counter(), 0
        here, there = torch.as_tensor(blocks, dtype=torch.long), torch.as_tensor(chunks, dtype=torch.long)
        for cache, host in self._sides:
            if store:
                host[there] = cache[here]
            else:
                cache[here] = host[there]
            moved += cache.shape[1] * len(here)
        return TransferResult(job_id=job, success=True, transfer_size=moved, transfer_time=time.perf_counter() - began)


class CpuTieringSpec(TieringOffloadingSpec):
    """vLLM's tiering with the copies above in place of its CUDA ones."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not self._worker:
            rank = 0 if self.replicated_layout else self.config.parallel.rank
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = TorchCopies(kv_caches, region)
        return self._worker
