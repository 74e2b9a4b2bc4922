"""Clocks within a running vLLM: how long the engine's own threads are in the connector.

Owns: wrapping the connector's hooks, percentiles. Must not know: what is run meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

STEP = ("build_connector_meta", "update_connector_output", "take_events", "get_kv_connector_stats")
ADMIT = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc")
FINISH = ("request_finished_all_groups",)
WORKER = (
    "handle_preemptions", "start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save",
    "get_transfer_results", "get_block_ids_with_load_errors", "build_connector_worker_meta",
)  # fmt: skip

_steps: list[float] = []
_worker_steps: list[float] = []
_finishes: list[float] = []
_admissions: list[float] = []


def install(scheduler: Any, worker: Any) -> None:
    """Begins to measure. Hooks called several times a step are added up."""
    for name in STEP:
        _wrap(scheduler, name, _steps, begins=name == STEP[0])
    for name in FINISH:
        _wrap(scheduler, name, _finishes, begins=True)
    for name in ADMIT:
        _wrap(scheduler, name, _admissions, begins=name == ADMIT[0])
    for name in WORKER:
        _wrap(worker, name, _worker_steps, begins=name == WORKER[0])


def read(scheduler: Any, worker: Any) -> dict[str, dict[str, float]]:
    """Microseconds: per step and per request, on the scheduler's thread; per step on the worker's."""
    requests = {"finished request": _finishes, "admitted request": _admissions}
    groups = {"step": _steps, "worker step": _worker_steps} | requests
    return {name: _percentiles(values) for name, values in groups.items()}


def _wrap(target: Any, name: str, into: list[float], begins: bool) -> None:
    hook: Callable[..., Any] = getattr(target, name)

    def timed(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter_ns()
        try:
            return hook(*args, **options)
        finally:
            spent = (time.perf_counter_ns() - begun) / 1000
            if begins or not into:
                into.append(spent)
            else:
                into[-1] += spent

    setattr(target, name, timed)


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1)

    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": round(ordered[-1], 1)}
