"""The device form of TurnKVCache on the host device, against the real server: exact from every tier, ordered, fail-open."""

from __future__ import annotations

import copy
import ctypes
import functools
import inspect
import weakref
from collections.abc import Callable

import numpy
import pytest
import slab
import torch
from conftest import Server, tiny_model
from slab import DTYPES, cut, same, say, tokens
from transformers import Cache, DynamicCache

import turnkv
from turnkv.transformers import MappingLost, TurnKVCache

NEW_TOKENS = 12
PROMPTS = (75, 160, 331, 1000)
say = functools.partial(say, new_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def device() -> turnkv.Device:
    return turnkv.Device(kind="host")


def converse(model, pool, session: str, first: int, turns: int, between: Callable[[], None], **settings) -> TurnKVCache:
    """`slab.converse` with one cache, whose totals tell what happened."""
    cache = TurnKVCache(model, session, pool, page_tokens=16, **settings)
    return slab.converse(model, lambda: cache, first, turns, between, NEW_TOKENS)


@DTYPES
@pytest.mark.parametrize("overlap", [True, False], ids=["layers", "blocking"])
@pytest.mark.parametrize("tier", ["dram", "nvme"])
def test_exact(server: Server, device: turnkv.Device, tier: str, overlap: bool, dtype: torch.dtype) -> None:
    model, pool = tiny_model(dtype), server.pool()
    for first in PROMPTS:
        between = server.to_nvme if tier == "nvme" else lambda: None
        cache = converse(
            model,
            pool,
            f"{tier}-{overlap}-{dtype}-{first}",
            first,
            2 if first > 500 else 3,
            between,
            device=device,
            overlap=overlap,
            salt=f"{tier}{overlap}".encode(),
        )
        from_tier = cache.totals.tokens_from_nvme if tier == "nvme" else cache.totals.tokens_from_dram
        assert from_tier == cache.totals.tokens_loaded > first


def test_a_slow_device_changes_no_token(server: Server) -> None:
    """Layers come late and out of step with the model: it waits for each."""
    slow = turnkv.Device(kind="host", delay_ms_max=5, seed=3)
    cache = converse(tiny_model(), server.pool(), "slow", 331, 3, lambda: None, device=slow, salt=b"slow")
    assert cache.totals.tokens_from_dram == cache.totals.tokens_loaded > 331


def poison(cache, page: int, ids: torch.Tensor) -> None:
    """Flips a bit of a page of this prompt in the pool's memory."""
    hashes = turnkv.chain_hashes(numpy.array(ids[0].tolist(), dtype=numpy.uint32).tobytes(), 16)
    pages = cache._pool.open_namespace(**cache._spec)
    with pages.lease(hashes) as lease:
        at = numpy.frombuffer(lease[page], dtype=numpy.uint8).ctypes.data + 333
        (ctypes.c_ubyte * 1).from_address(at)[0] ^= 0x10


@pytest.mark.parametrize("overlap", [True, False], ids=["layers", "blocking"])
def test_a_poisoned_page_is_a_miss(make_server: Callable[..., Server], device: turnkv.Device, overlap: bool) -> None:
    model = tiny_model()
    pool = make_server(nvme=None).pool()  # else the page would come from there the next time
    cache = TurnKVCache(model, "poison", pool, device=device, overlap=overlap, page_tokens=16)
    prompt, kept = tokens(200, seed=6), DynamicCache(config=model.config)
    cache.begin(prompt)
    ours = say(model, prompt, cache)
    say(model, prompt, kept)
    cache.end_turn(ours.sequences)
    poison(cache, 5, prompt)
    longer = torch.cat([ours.sequences, tokens(20, seed=7)], dim=1)
    loaded = cache.begin(longer)
    if overlap:  # the model is at work before all is verified: nothing comes of it, and the next try knows
        with pytest.raises(MappingLost, match="checksum"):
            say(model, longer, cache)
        assert cache.turn.misses["lost:checksum"] == 1 and cache.turn.tokens_loaded == 0 == cache.get_seq_length()
        loaded = cache.begin(longer)
    else:
        assert cache.turn.misses["checksum"] == 1
    assert loaded == 80, cache.turn
    assert same(say(model, longer, cache), say(model, longer, cut(kept, loaded)))


def test_no_server_at_all(device: turnkv.Device) -> None:
    model, prompt = tiny_model(), tokens(40, seed=15)
    cache = TurnKVCache(model, "nobody", "unix:/nonexistent/turnkv.sock", device=device)
    assert cache.begin(prompt) == 0
    ours = say(model, prompt, cache)
    assert same(ours, say(model, prompt, DynamicCache(config=model.config)))
    cache.end_turn(ours.sequences)
    assert (
        cache.turn.misses["error:unavailable"] + cache.turn.misses["error:deadline"] + cache.turn.misses["error:breaker_open"]
        == 2
    )


def test_memory_grows_in_place(server: Server, device: turnkv.Device) -> None:
    """A long reply: appended where it lies, moved when the room is used up, the same tokens either way."""
    model, prompt = tiny_model(), tokens(60, seed=16)
    cache = TurnKVCache(model, "grows", server.pool(), device=device, page_tokens=16)
    cache.begin(prompt)
    places = set()
    kept = DynamicCache(config=model.config)
    ids = prompt
    for _ in range(300):
        rest = ids[:, cache.get_seq_length() :]
        ours = model(input_ids=rest, past_key_values=cache, logits_to_keep=1).logits
        theirs = model(input_ids=rest, past_key_values=kept, logits_to_keep=1).logits
        assert torch.equal(ours, theirs)
        places.add(cache.layers[0].keys.data_ptr())
        ids = torch.cat([ids, ours[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    assert len(places) == 2, "257 tokens of room, so 300 more move it once"
    assert cache.end_turn(ids).tokens_offloaded == ids.shape[1] - 1


def test_beams_copies_and_crops_of_a_loaded_cache(server: Server, device: turnkv.Device) -> None:
    model, prompt = tiny_model(), tokens(90, seed=18)
    cache = TurnKVCache(model, "beams", server.pool(), device=device, page_tokens=16, salt=b"device-beams")
    assert isinstance(cache, TurnKVCache)
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    longer = torch.cat([prompt, tokens(9, seed=19)], dim=1)
    assert cache.begin(longer) == 80
    clone = copy.deepcopy(cache)
    assert type(clone) is DynamicCache and clone.get_seq_length() == 80
    assert same(say(model, longer, clone), say(model, longer, cut(clone, 80)))
    beams = model.generate(longer, past_key_values=cache, max_new_tokens=4, num_beams=3, do_sample=False)
    assert beams.shape == (1, 103)
    assert cache.end_turn(beams).misses["skipped:batch"] == 1
    assert cache.begin(longer) == 80
    cache.crop(-30)
    said = say(model, longer, cache)
    assert same(said, say(model, longer, cut(clone, 50)))
    assert cache.end_turn(said.sequences).tokens_offloaded == said.sequences.shape[1] - 1


def test_the_form_is_chosen_by_the_model_and_the_device(server: Server, device: turnkv.Device) -> None:
    from turnkv._hf.device import DeviceCache
    from turnkv._hf.slab import SlabCache

    model, pool = tiny_model(), server.pool()
    assert type(TurnKVCache(model, "form", pool, device=device)) is DeviceCache
    assert type(TurnKVCache(model, "form", pool)) is SlabCache
    assert TurnKVCache(model, "form", pool, device=device)._shape.page_tokens == 128
    caches = [TurnKVCache(model, "form", pool, **settings) for settings in ({}, {"legacy": True}, {"device": device})]
    assert all(isinstance(cache, Cache) and isinstance(cache, TurnKVCache) for cache in caches)
    assert type(TurnKVCache) is type, "an ordinary class"
    assert {"legacy", "device", "overlap", "sink", "wait_ms"} <= set(inspect.signature(TurnKVCache).parameters)
    for settings in ({"legacy": True, "sink": 16}, {"device": device, "window": 64}, {"slots": 8}):
        with pytest.raises(TypeError):
            TurnKVCache(model, "form", pool, **settings)
    for settings in ({}, {"legacy": True}):
        # A script for a GPU runs on a CPU too, where there is nothing to overlap; memory of a GPU there is none.
        TurnKVCache(model, "form", pool, overlap=False, **settings)
        with pytest.raises(ValueError, match="gpu_bytes is of the device form"):
            TurnKVCache(model, "form", pool, gpu_bytes=1 << 20, **settings)
    with pytest.raises(ValueError, match="GPU"):
        DeviceCache(model, "form", pool)


PAGE = 2 * 3 * 16 * 2 * 32 * 4
"""Bytes of 16 tokens of the tiny model in float32."""


def test_gpu_tier_exact(server: Server, device: turnkv.Device) -> None:
    """What a turn left in device memory comes from there, tail and all; layer by layer and not."""
    for overlap in (True, False):
        cache = converse(
            tiny_model(),
            server.pool(),
            f"tier-{overlap}",
            331,
            4,
            server.to_nvme,
            device=device,
            overlap=overlap,
            gpu_bytes=200 * PAGE,
            salt=b"tier" + bytes([overlap]),
        )
        totals = cache.totals
        assert totals.tokens_from_gpu == totals.tokens_loaded > 1000 and totals.tokens_from_nvme == 0, totals


def test_gpu_tier_is_shared_and_gives_way(server: Server, device: turnkv.Device) -> None:
    """Sessions of one model share it and its system prompt; what does not fit comes from the pool, in one turn with what does."""
    model, pool, salt = tiny_model(), server.pool(), b"tier-shared"
    system = tokens(64, seed=1)
    kept, caches, said = {}, {}, {}
    for session in range(4):
        prompt = torch.cat([system, tokens(100, seed=50 + session)], dim=1)
        kept[session] = DynamicCache(config=model.config)
        caches[session] = TurnKVCache(
            model, f"t{session}", pool, device=device, page_tokens=16, gpu_bytes=24 * PAGE, salt=salt, overlap=bool(session % 2)
        )
        loaded = caches[session].begin(prompt)
        assert loaded == (64 if session else 0) == caches[session].turn.tokens_from_gpu
        said[session] = say(model, prompt, caches[session]).sequences
        say(model, prompt, kept[session])
        caches[session].end_turn(said[session])
    tier = caches[0]._tier
    assert all(cache._tier is tier for cache in caches.values())
    stats = tier.pages.stats()
    assert stats["capacity_pages"] == 24 and stats["evicted"] > 0, stats
    for session in (3, 0):
        longer = torch.cat([said[session], tokens(9, seed=session)], dim=1)
        loaded = caches[session].begin(longer)
        ours = say(model, longer, caches[session])
        turn = caches[session].turn
        assert same(ours, say(model, longer, cut(kept[session], loaded))) and loaded == said[session].shape[1] - 1
        assert turn.tokens_from_gpu + turn.tokens_from_dram == loaded and turn.tokens_from_gpu >= 64, turn
        assert session == 3 or turn.tokens_from_dram > 0, turn
    with pytest.raises(ValueError, match="tier on this device has"):
        TurnKVCache(model, "t", pool, device=device, page_tokens=16, gpu_bytes=25 * PAGE, salt=salt)
    assert TurnKVCache(model, "t", pool, device=device, page_tokens=16, gpu_bytes=25 * PAGE, salt=b"other")._tier is not tier


def test_a_dropped_cache_gives_its_memory_back_at_once(server: Server, device: turnkv.Device) -> None:
    """Tensors and tier: nothing waits for the collector of cycles."""
    model, prompt = tiny_model(), tokens(90, seed=5)
    cache = TurnKVCache(model, "gone", server.pool(), device=device, page_tokens=16, gpu_bytes=8 * PAGE, salt=b"gone")
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    cache.begin(prompt)
    tier, tensor = weakref.ref(cache._tier), weakref.ref(cache.layers[0]._memory)
    cache._settle()
    del cache
    device.memory()  # drops what the copies kept
    assert tier() is None and tensor() is None


def test_gpu_tier_needs_its_memory(server: Server, device: turnkv.Device) -> None:
    with pytest.raises(turnkv.Error, match="device memory") as raised:
        TurnKVCache(tiny_model(), "big", server.pool(), device=device, gpu_bytes=1 << 34, salt=b"big")
    assert raised.value.kind == "device"
    with pytest.raises(ValueError, match="no room for one page"):
        TurnKVCache(tiny_model(), "small", server.pool(), device=device, gpu_bytes=1, salt=b"small")


def test_evicted_from_the_pool_but_near(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    """The pool forgot everything: the tier still has the prompt, and the next turn stores it again."""
    server = make_server(nvme=None)
    model, pool = tiny_model(), server.pool()
    cache = TurnKVCache(model, "near", pool, device=device, page_tokens=16, gpu_bytes=64 * PAGE)
    prompt, kept = tokens(160, seed=3), DynamicCache(config=model.config)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    say(model, prompt, kept)
    cache.end_turn(said)
    pool.evict()
    longer = torch.cat([said, tokens(9, seed=4)], dim=1)
    assert cache.begin(longer) == 160 == cache.turn.tokens_from_gpu
    ours = say(model, longer, cache)
    assert same(ours, say(model, longer, cut(kept, 160)))
    report = cache.end_turn(ours.sequences)
    assert report.pages_stored >= 11 and report.pages_declined == 0, report
