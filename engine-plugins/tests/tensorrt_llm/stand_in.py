"""A stand-in for the parts of TensorRT-LLM that the plugin meets: base classes, data of a step, talk among ranks.

Written from the interface of 1.2. Owns: those shapes. Must not know: the plugin.
"""

from __future__ import annotations

import sys
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

VERSION = "1.2.1"


class WorkerBase(ABC):
    """KvCacheConnectorWorker."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None
        super().__init__()

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def get_connector_meta(self) -> Any:
        return self._metadata

    def _clear_connector_meta(self) -> None:
        self._metadata = None

    def register_forward_pass_callable(self) -> Any:
        return None

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...

    @abstractmethod
    def get_finished(self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]) -> Any: ...


class SchedulerBase(ABC):
    """KvCacheConnectorScheduler."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> Any: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...


@dataclass
class RequestData:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class SchedulerOutput:
    new_requests: list[RequestData] = field(default_factory=list)
    cached_requests: list[RequestData] = field(default_factory=list)


class Ranks:
    """Threads that stand for MPI processes: each is a rank while it makes its worker."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._size = 1
        self._barrier = threading.Barrier(1)
        self._values: list[Any] = [None]

    def rank(self) -> int:
        return getattr(self._here, "rank", 0)

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank()] = value
        self._barrier.wait(20)
        values = list(self._values)
        self._barrier.wait(20)
        return values

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return self.gather(value)[root]

    def run(self, size: int, make: Callable[[int], Any]) -> list[Any]:
        """`make(rank)` of all ranks at once. Raises what the first of them raised."""
        self._size, self._barrier, self._values = size, threading.Barrier(size), [None] * size
        made: list[Any] = [None] * size

        def one(rank: int) -> None:
            self._here.rank = rank
            try:
                made[rank] = make(rank)
            except Exception as error:
                made[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        # Ranks that only waited for one that failed tell less than that one.
        failed = sorted((value for value in made if isinstance(value, Exception)), key=_only_waited)
        if failed:
            raise failed[0]
        return made


def _only_waited(error: Exception) -> bool:
    return isinstance(error, threading.BrokenBarrierError)


ranks = Ranks()


def install() -> None:
    """Puts the stand-in where the engine would be."""
    top = types.ModuleType("tensorrt_llm")
    top.__version__ = VERSION
    utils = types.ModuleType("tensorrt_llm._utils")
    utils.mpi_rank, utils.mpi_broadcast, utils.mpi_allgather = ranks.rank, ranks.broadcast, ranks.gather
    interface = types.ModuleType("tensorrt_llm._torch.pyexecutor.kv_cache_connector")
    interface.KvCacheConnectorWorker, interface.KvCacheConnectorScheduler = WorkerBase, SchedulerBase
    interface.RequestData, interface.SchedulerOutput = RequestData, SchedulerOutput
    packages = [types.ModuleType(name) for name in ("tensorrt_llm._torch", "tensorrt_llm._torch.pyexecutor")]
    for module in (top, *packages, utils, interface):
        sys.modules[module.__name__] = module
