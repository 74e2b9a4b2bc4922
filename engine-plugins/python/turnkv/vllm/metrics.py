"""What the connector did, for vLLM's log and for Prometheus. A load that failed is no hit: only verified pages count.

Owns: names of metrics, adding up. Must not know: pools, pages, requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

SAMPLES_MAX = 4096
"""Latencies kept between two reports; further ones are left out of the histogram, never of a counter."""

COUNTERS: dict[str, tuple[str, str | None]] = {
    "lookups": ("Lookups: hit, miss, local (the engine had as much itself), or why the pool could not say", "result"),
    "queried_tokens": ("Tokens of prompts looked up beyond the local prefix cache", None),
    "loaded_tokens": ("Tokens whose KV came from the pool, verified", None),
    "loaded_blocks": ("Blocks filled from the pool, verified", None),
    "failed_tokens": ("Tokens that a lookup promised and a load did not bring: they were computed", "cause"),
    "failed_blocks": ("Blocks that a lookup promised and a load did not bring", "cause"),
    "saved_blocks": ("Blocks newly stored in the pool", None),
    "present_blocks": ("Blocks offered that the pool had already", None),
    "declined_blocks": ("Blocks that the pool did not take", "cause"),
    "not_durable_requests": ("Requests whose blocks were to be on NVMe when they ended, and were not", "cause"),
    "session_failures": ("Calls about sessions that failed", "kind"),
}
"""Name (after vllm:turnkv_) -> help, name of its one label."""
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "lookup_seconds": ("Time of a lookup", (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5)),
    "load_seconds": ("Time of a load, from its start to its last block", (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5)),
}


@dataclass
class TurnKVStats(KVConnectorStats):
    """Counts and latencies since the last report. `data` is plain: it travels between processes."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Starts again from nothing."""
        self.data: dict[str, dict[str, Any]] = {"counts": {}, "samples": {}}

    def count(self, name: str, amount: int = 1, label: str = "") -> None:
        """Adds to a counter."""
        if amount:
            by_label = self.data["counts"].setdefault(name, {})
            by_label[label] = by_label.get(label, 0) + amount

    def observe(self, name: str, value: float) -> None:
        """Adds a latency."""
        samples = self.data["samples"].setdefault(name, [])
        if len(samples) < SAMPLES_MAX:
            samples.append(value)

    def aggregate(self, other: KVConnectorStats) -> TurnKVStats:
        """Both together."""
        for name, by_label in other.data["counts"].items():
            for label, amount in by_label.items():
                self.count(name, amount, label)
        for name, samples in other.data["samples"].items():
            for value in samples:
                self.observe(name, value)
        return self

    def total(self, name: str) -> int:
        """A counter's sum over its labels."""
        return sum(self.data["counts"].get(name, {}).values())

    def reduce(self) -> dict[str, int | float]:
        """For the log line."""
        line: dict[str, int | float] = {name: self.total(name) for name in self.data["counts"]}
        for name, samples in self.data["samples"].items():
            ordered = sorted(samples)
            line[f"{name}_p50"] = round(ordered[len(ordered) // 2], 6)
            line[f"{name}_max"] = round(ordered[-1], 6)
        return line

    def is_empty(self) -> bool:
        """Nothing happened."""
        return not self.data["counts"] and not self.data["samples"]


class TurnKVPromMetrics(KVConnectorPromMetrics):
    """The same as Prometheus metrics named vllm:turnkv_*, one child per engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, histogram = metric_types[Counter], metric_types[Histogram]
        self._counters = {
            name: counter(name=f"vllm:turnkv_{name}", documentation=text, labelnames=[*labelnames, *([label] if label else [])])
            for name, (text, label) in COUNTERS.items()
        }
        self._histograms = {
            name: histogram(name=f"vllm:turnkv_{name}", documentation=text, buckets=buckets, labelnames=labelnames)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        for values in per_engine_labelvalues.values():
            for name in _unlabelled(COUNTERS):
                self._counters[name].labels(*values)
            for family in self._histograms.values():
                family.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Takes one report."""
        values = self.per_engine_labelvalues[engine_idx]
        for name, by_label in transfer_stats_data["counts"].items():
            for label, amount in by_label.items():
                labels = [*values, label] if COUNTERS[name][1] else values
                self._counters[name].labels(*labels).inc(amount)
        for name, samples in transfer_stats_data["samples"].items():
            child = self._histograms[name].labels(*values)
            for value in samples:
                child.observe(value)


def _unlabelled(counters: dict[str, tuple[str, str | None]]) -> Iterable[str]:
    return (name for name, (_, label) in counters.items() if label is None)
