"""Tokens after a reload are those of a cache that was never dropped: from every tier, and a poisoned page is a miss.

Owns: three conversations, deterministic algorithms, one flipped bit. Must not know: how servers and models are made.
What is never dropped is a plain cache with the very bits that the first turn left. Two computations of the same tokens may differ
in the last bit (a GPU's libraries choose their kernels by strides and addresses, too): where much is computed again, as behind a
poisoned page, the tokens are noted, and what is checked is K and V.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy
import torch
from stage import GIB, Served, Stage, table

import turnkv

PROMPTS = (777, 2048, 5003)
PROMPTS_TINY = (75, 160, 331)
NEW_TOKENS = 8
DRAM_BYTES = 8 * GIB
NVME_BYTES = 12 * GIB
GPU_BYTES = 4 * GIB


def run(stage: Stage) -> None:
    """Prints one line a prompt and tier; everything in it is checked."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # what has no such algorithm says so
    try:
        with stage.pool(DRAM_BYTES, NVME_BYTES) as served:
            rows = [row for tokens in (PROMPTS_TINY if stage.tiny else PROMPTS) for row in _prompt(stage, served, tokens)]
    finally:
        torch.use_deterministic_algorithms(False)
    table(
        "tokens after a reload, deterministic algorithms",
        ["prompt", "from", "tokens loaded", "tokens identical", "K and V identical"],
        rows,
    )


def _prompt(stage: Stage, served: Served, tokens: int) -> list[list[Any]]:
    """A conversation of two turns, the second one from each tier, beside one whose cache is kept."""
    ids = stage.tokens(tokens, seed=tokens)
    first = stage.cache(f"e{tokens}", served.door)
    first.begin(ids)
    said = stage.reply(ids, first, NEW_TOKENS)
    kept = stage.plain_cache()
    for number, layer in enumerate(first.layers):
        kept.update(*(part[..., : first.get_seq_length(), :].clone() for part in (layer.keys, layer.values)), number)
    first.end_turn(said)
    plain = stage.reply(ids, stage.plain_cache(), NEW_TOKENS)
    stage.note(**{f"plain_first_turn_says_the_same_{tokens}": torch.equal(plain, said)})
    longer = torch.cat([said, stage.tokens(33, seed=tokens + 1)], dim=1)
    before = kept.get_seq_length()
    expected = stage.reply(longer, kept, NEW_TOKENS)
    rows = []
    gpu_bytes = 64 << 20 if stage.tiny else GPU_BYTES
    for tier, settings in {
        "DRAM, blocking": {"overlap": False},
        "DRAM, layer by layer": {},
        "NVMe": {},
        "GPU tier (filling)": {"gpu_bytes": gpu_bytes},
        "GPU tier": {"gpu_bytes": gpu_bytes},
    }.items():
        if tier == "NVMe" and not served.nvme_bytes:
            stage.note(left_out="NVMe: the disk has no room")
            continue
        if tier == "NVMe" and not served.to_nvme(30):
            stage.check(False, "the pages are not written to NVMe in time")
            continue
        cache = stage.cache(f"e{tokens}", served.door, **settings)
        loaded = cache.begin(longer)
        turn = cache.turn
        ours = stage.reply(longer, cache, NEW_TOKENS)
        alike = _same_content(cache, kept, before)
        stage.check(torch.equal(ours, expected), f"{tokens} tokens from {tier}: the tokens are the same")
        stage.check(alike, f"{tokens} tokens from {tier}: K and V are the same, bit for bit")
        where = {"N": turn.tokens_from_nvme, "D": turn.tokens_from_dram}.get(tier[0], turn.tokens_from_gpu)
        stage.check(loaded >= tokens and (where == loaded or "filling" in tier), f"{tokens} tokens came from {tier}: {turn}")
        if "filling" in tier:
            cache.crop(before - cache.get_seq_length())
            cache.end_turn(longer)
        stage.row(prompt=tokens, tier=tier, loaded=loaded, tokens_identical=torch.equal(ours, expected), bits_identical=alike)
        rows.append([tokens, tier, loaded, torch.equal(ours, expected), alike])
        cache.drop()
    rows.append(_poisoned(stage, served, tokens, longer, kept))
    return rows


def _poisoned(stage: Stage, served: Served, tokens: int, longer: torch.Tensor, kept: Any) -> list[Any]:
    """A flipped bit in the third page's slot: two pages come, the rest is computed, as after a kept cache cut that short."""
    cache = stage.cache(f"e{tokens}", served.door, overlap=False)
    size = cache._shape.page_tokens
    cache.begin(longer)  # in DRAM from here on
    cache.drop()
    packed = numpy.array(longer[0, : 3 * size].tolist(), dtype=numpy.uint32).tobytes()
    hashes = turnkv.chain_hashes(packed, size)
    with served.door.open_namespace(**cache._spec).lease(hashes) as lease:
        stage.check(len(lease) == 3, f"{tokens} tokens: the page to be poisoned is in DRAM")
        at = numpy.frombuffer(lease[2], dtype=numpy.uint8).ctypes.data + 1000
        byte = (ctypes.c_ubyte * 1).from_address(at)
        byte[0] ^= 0x10
    loaded = cache.begin(longer)
    kept.crop(loaded - kept.get_seq_length())
    alike = _same_content(cache, kept, loaded)
    same = torch.equal(stage.reply(longer, cache, NEW_TOKENS), stage.reply(longer, kept, NEW_TOKENS))
    missed = stage.check(loaded == 2 * size and cache.turn.misses["checksum"] == 1, f"a poisoned page is a miss: {cache.turn}")
    stage.check(alike, f"{tokens} tokens, one page poisoned: K and V before it are the same, bit for bit")
    stage.row(prompt=tokens, tier="poisoned", loaded=loaded, tokens_identical=same, bits_identical=alike, missed=missed)
    return [tokens, "DRAM, third page poisoned", loaded, same, alike]


def _same_content(cache: Any, kept: Any, tokens: int) -> bool:
    """K and V of the loaded tokens, all layers."""
    pairs = ((ours, theirs) for ours, theirs in zip(cache.layers, kept.layers, strict=True))
    return all(
        torch.equal(ours.keys[..., :tokens, :], theirs.keys[..., :tokens, :])
        and torch.equal(ours.values[..., :tokens, :], theirs.values[..., :tokens, :])
        for ours, theirs in pairs
    )
