"""Time to first token of a second turn: computed anew, against reloaded from each tier, blocking and layer by layer.

Owns: lengths, ways, their medians, the break-even length. Must not know: how servers and models are made.

For each length: a first turn leaves its pages in the pool; the second has the same tokens and a few more. What is timed is
`begin` and the forward pass to the first new token, with the device idle before and after.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import plot
from stage import GIB, OutOfTime, Served, Stage, table

LENGTHS = (2048, 8192, 32_768, 131_072)
LENGTHS_TINY = (256, 600)
NEW_TOKENS = 32
DRAM_BYTES = 36 * GIB
NVME_BYTES = 24 * GIB
NVME_TOKENS_MAX = 32_768
GPU_BYTES = 6 * GIB
"""Of the GPU tier: a session of 32k tokens and more."""
GPU_TOKENS_MAX = 32_768
WANTED_LENGTH, WANTED_LINK_SHARE = 32_768, 0.9


@dataclass
class _Length:
    tokens: int
    bytes: int
    prefill: list[float] = field(default_factory=list)
    ways: dict[str, list[float]] = field(default_factory=dict)
    """Seconds to the first token."""
    begins: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of `begin` alone, where it waits for all pages: what is held against the link."""


def run(stage: Stage) -> None:
    """Prints the table, writes the plot."""
    rates = stage.link_rates()
    stage.note(link_bytes_per_second={name: round(rate) for name, rate in rates.items()})
    done: list[_Length] = []
    with stage.pool(DRAM_BYTES, NVME_BYTES) as served:
        _warm(stage, served)
        try:
            for tokens in LENGTHS_TINY if stage.tiny else LENGTHS:
                if 1.5 * stage.kv_bytes(tokens) > served.dram_bytes:
                    stage.note(too_long_for_the_pool=tokens)
                    print(
                        f"{tokens} tokens: {stage.kv_bytes(tokens) / GIB:.1f} GiB, and the pool has {served.dram_bytes / GIB:.1f}"
                    )
                    continue
                done.append(_length(stage, served, tokens))
                _report(stage, done[-1], rates)
        except OutOfTime as error:
            stage.note(cut_short=str(error))
            print(f"cut short: {error}")
        stage.note(device_stats=stage.device.stats())
    _tables(stage, done, rates)


def _warm(stage: Stage, served: Served) -> None:
    """A first turn of everything: kernels are loaded, slabs are mapped and registered with the device."""
    ids = stage.tokens(300, seed=1)
    for _ in range(2):
        cache = stage.cache("warm", served.door)
        cache.begin(ids)
        stage.first_token(ids, cache)
        cache.end_turn(ids)
    stage.note(registered_gib=round(stage.registered(), 2))


def _length(stage: Stage, served: Served, tokens: int) -> _Length:
    length = _Length(tokens, stage.kv_bytes(tokens))
    ids, longer = stage.tokens(tokens, seed=tokens), stage.tokens(tokens + NEW_TOKENS, seed=tokens)
    longer[:, :tokens] = ids
    rounds = 3 if tokens > 16_384 else 5
    stage.need(60 if tokens > 100_000 else 15)

    def prefill() -> float:
        return stage.timed(lambda: stage.first_token(longer, stage.plain_cache()))[0]

    prefill()  # the allocator's first time for these sizes is not counted
    length.prefill = stage.median(prefill, 1 if tokens > 100_000 else rounds)
    first = stage.cache(f"s{tokens}", served.door)
    first.begin(ids)
    stage.first_token(ids, first)
    report = first.end_turn(ids)
    stage.check(report.tokens_offloaded == tokens, f"{tokens} tokens: all are offloaded ({report})")
    stage.registered(5)
    for overlap in (False, True):
        _way(stage, served, length, longer, "DRAM", overlap, rounds)
    if tokens <= GPU_TOKENS_MAX:
        for overlap in (False, True):
            _way(stage, served, length, longer, "GPU", overlap, rounds, gpu_bytes=64 << 20 if stage.tiny else GPU_BYTES)
    on_disk = tokens <= NVME_TOKENS_MAX and 1.5 * stage.kv_bytes(tokens) < served.nvme_bytes
    if on_disk and (stage.tiny or stage.left() > 60):
        if served.to_nvme(25):
            for overlap in (False, True):
                _way(stage, served, length, longer, "NVMe", overlap, 3)
        else:
            stage.note(nvme_left_out_from_tokens=tokens)
            print(f"{tokens} tokens: the disk does not take the pages in time, so nothing is read from it")
    return length


def _way(
    stage: Stage, served: Served, length: _Length, longer: Any, tier: str, overlap: bool, rounds: int, **settings: Any
) -> None:
    """One tier, blocking or layer by layer. The first round is not counted."""
    name = f"{tier}, {'layer by layer' if overlap else 'blocking'}"
    cache = stage.cache(f"s{length.tokens}", served.door, overlap=overlap, **settings)
    begins: list[float] = []

    def turn() -> float:
        if tier == "NVMe":
            served.to_nvme(5)  # on disk already: empties DRAM

        def begin_and_answer() -> int:
            loaded = cache.begin(longer)
            begins.append(cache.turn.reload_ms / 1e3)
            stage.first_token(longer, cache)
            return loaded

        seconds, loaded = stage.timed(begin_and_answer)
        stage.check(loaded >= length.tokens - 1, f"{name}: {loaded} of {length.tokens} tokens came ({cache.turn.misses})")
        return seconds

    turn()
    if tier == "GPU":
        cache.crop(length.tokens - cache.get_seq_length())
        cache.end_turn(longer, keep=True)  # the pages that came from DRAM are in the GPU tier now
        turn()
    counted = turn_of(cache, tier)
    stage.check(counted >= length.tokens - 1, f"{name}: {counted} tokens came from there ({cache.turn})")
    begins.clear()
    length.ways[name] = stage.median(turn, rounds)
    length.begins[name] = begins
    cache.drop()


def turn_of(cache: Any, tier: str) -> int:
    """Tokens of the latest turn that came from a tier."""
    return {"GPU": cache.turn.tokens_from_gpu, "DRAM": cache.turn.tokens_from_dram, "NVMe": cache.turn.tokens_from_nvme}[tier]


def _report(stage: Stage, length: _Length, rates: dict[str, float]) -> None:
    stage.row(
        tokens=length.tokens,
        kv_bytes=length.bytes,
        prefill_seconds=length.prefill,
        ttft_seconds=length.ways,
        begin_seconds=length.begins,
        link_share={name: _share(length, name, rates) for name in length.begins},
    )


def _share(length: _Length, name: str, rates: dict[str, float]) -> float | None:
    """Of the link's own time for these bytes, for ways that wait for all of them in `begin`."""
    if "blocking" not in name or name.startswith("NVMe"):
        return None
    rate = rates["d2d"] if name.startswith("GPU") else rates["h2d"]
    return length.bytes / rate / statistics.median(length.begins[name])


def _tables(stage: Stage, done: list[_Length], rates: dict[str, float]) -> None:
    rows = []
    for length in done:
        prefill = statistics.median(length.prefill)
        rows.append([length.tokens, "prefill", prefill * 1e3, 1.0, None])
        for name, seconds in length.ways.items():
            took = statistics.median(seconds)
            rows.append([length.tokens, name, took * 1e3, prefill / took, _share(length, name, rates)])
    table("TTFT of a second turn, medians", ["tokens", "way", "ms", "prefill / this", "share of link time"], rows)
    names = list(dict.fromkeys(name for length in done for name in length.ways))
    series = {"prefill": [(length.tokens, statistics.median(length.prefill)) for length in done]}
    for name in names:
        series[name] = [(length.tokens, statistics.median(length.ways[name])) for length in done if name in length.ways]
    even = {name: plot.crossing(series["prefill"], series[name]) for name in names}
    stage.note(break_even_tokens=even)
    table(
        "break-even length",
        ["way", "tokens from which it is faster than prefill"],
        [
            [name, "below the shortest measured" if at is not None and at <= done[0].tokens else at and round(at)]
            for name, at in even.items()
        ],
    )
    if done:
        (stage.out / "ttft.svg").write_text(plot.lines("Time to first token of a second turn", "tokens", "seconds", series))
    _wanted(stage, done, rates)


def _wanted(stage: Stage, done: list[_Length], rates: dict[str, float]) -> None:
    """The goal, as a figure: a bench reports, it does not pass. What the gain over prefill comes to is the model's affair as much
    as ours, so the link's own time for the bytes is what counts."""
    for length in done:
        if length.tokens == WANTED_LENGTH and "DRAM, layer by layer" in length.ways:
            took = statistics.median(length.ways["DRAM, layer by layer"])
            floor = length.bytes / rates["h2d"]
            stage.note(
                wanted={
                    "link_share_at_32k": [_share(length, "DRAM, blocking", rates), f">= {WANTED_LINK_SHARE}"],
                    "link_floor_over_ttft_at_32k": [round(floor / took, 3), f">= {WANTED_LINK_SHARE}"],
                },
                gain_over_prefill_at_32k=round(statistics.median(length.prefill) / took, 2),
            )
