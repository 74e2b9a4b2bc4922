"""A stand-in for an engine's large kernels: one block on every multiprocessor, with nearly all of its shared memory.

Owns: loading and launching stand_in.ptx through the driver library, its length. Must not know: what runs beside it.
Where something holds a place on a multiprocessor, the block for it waits, and the kernel takes two waves: what a copy kernel
costs a matrix product, and a copy engine does not.
"""

from __future__ import annotations

import ctypes
import itertools
import pathlib

import torch

THREADS = 256
SECONDS = 0.5e-3
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""Of CUfunction_attribute."""
SHARED_BYTES_USUAL = 160 << 10
"""Where torch does not say how much a block may have."""


class StandIn:
    """The kernel, loaded and of the wanted length."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        properties = torch.cuda.get_device_properties(0)
        self._blocks = properties.multi_processor_count
        self.shared_bytes = getattr(properties, "shared_memory_per_block_optin", SHARED_BYTES_USUAL)
        self._out = torch.zeros(self._blocks * THREADS, dtype=torch.float32, device="cuda:0")
        torch.cuda.synchronize()  # torch's context is this thread's from here on
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        text = pathlib.Path(__file__).with_name("stand_in.ptx").read_bytes() + b"\0"
        self._check("cuModuleLoadData", ctypes.byref(module), text)
        self._check("cuModuleGetFunction", ctypes.byref(self._function), module, b"stand_in")
        self._check("cuFuncSetAttribute", self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, self.shared_bytes)
        self._rounds = 1000
        self.seconds(3)
        self._rounds = max(1, int(self._rounds * SECONDS / min(self.seconds(5))))

    def seconds(self, count: int) -> list[float]:
        """Of each of so many launches, one behind the other, as the device measured them."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self._launch()
            mark.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]

    def _launch(self) -> None:
        values = (
            ctypes.c_uint32(self._rounds),
            ctypes.c_uint32(self.shared_bytes // 4),
            ctypes.c_uint64(self._out.data_ptr()),
        )
        arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        shape = (self._blocks, 1, 1, THREADS, 1, 1, self.shared_bytes)
        self._check("cuLaunchKernel", self._function, *shape, stream, arguments, None)

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")
