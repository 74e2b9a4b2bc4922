"""TurnKV for TensorRT-LLM: connector classes that keep sessions' KV in a pool.

    KvCacheConnectorConfig(connector_module="turnkv.tensorrt_llm",
                           connector_scheduler_class="Scheduler", connector_worker_class="Worker")

Options come from the environment: see `turnkv.tensorrt_llm.options`. The engine is imported when a class is asked for.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Scheduler", "Worker"]


def __getattr__(name: str) -> Any:
    if name == "Scheduler":
        from .scheduler import Scheduler

        return Scheduler
    if name == "Worker":
        from .worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
