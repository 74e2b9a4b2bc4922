"""What differs between versions of TensorRT-LLM, and what the plugin takes from it.

Owns: where the interface lies, the version, talk among ranks. Must not know: pools, pages, requests.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

logger = logging.getLogger("turnkv.tensorrt_llm")

_INTERFACES = (
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
)
"""Where the connector's base classes lie: in 1.2, and after it."""


def interface() -> Any:
    """The module with the base classes."""
    for name in _INTERFACES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that is there but lacks one of its own imports is another matter.
            if error.name is None or not name.startswith(error.name):
                raise
    raise ImportError(f"TensorRT-LLM is not installed, or has no KV cache connector: no {' and no '.join(_INTERFACES)}")


def version() -> str:
    """Of the engine; what lies within a block may change with any."""
    return str(getattr(importlib.import_module("tensorrt_llm"), "__version__", "unknown"))


def rank() -> int:
    """This process's."""
    return int(_utils().mpi_rank())


def from_leader(value: Any) -> Any:
    """Rank 0's value, on every rank. All ranks must call it."""
    return _utils().mpi_broadcast(value, root=0)


def of_all(value: Any) -> list[Any]:
    """Every rank's value, on every rank. All ranks must call it."""
    return list(_utils().mpi_allgather(value))


def _utils() -> Any:
    return importlib.import_module("tensorrt_llm._utils")
