"""The copying form of TurnKVCache against the real server: exact, poisoned, fail-open, sessions."""

from __future__ import annotations

import copy
import functools
import os
import pathlib
import time
from collections.abc import Callable

import pytest
import slab
import torch
from conftest import Server, tiny_model
from slab import cut, same, tokens
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from turnkv.fingerprint import model_fingerprint
from turnkv.transformers import TurnKVCache as EitherForm
from turnkv.transformers import Unsupported

TurnKVCache = functools.partial(EitherForm, legacy=True)
NEW_TOKENS = 12
PROMPTS = (75, 160, 331, 2100)
"""Tokens of a first prompt: with a tail, a whole number of pages, a tail again, a long one."""


def say(model: Qwen3ForCausalLM, prompt: torch.Tensor, cache: DynamicCache):
    return model.generate(
        prompt,
        past_key_values=cache,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )


def converse(model, pool, session: str, first: int, turns: int, between: Callable[[], None], **settings) -> TurnKVCache:
    """`slab.converse` with a new cache each turn: nothing is remembered in it."""
    return slab.converse(model, lambda: TurnKVCache(model, session, pool, **settings), first, turns, between, NEW_TOKENS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("tier", ["dram", "nvme"])
@pytest.mark.parametrize("plane", ["shm", "inline"])
def test_exact(server: Server, plane: str, tier: str, dtype: torch.dtype) -> None:
    model, pool = tiny_model(dtype), server.pool(data_plane=plane)
    for first in PROMPTS:
        between = server.to_nvme if tier == "nvme" else lambda: None
        cache = converse(
            model,
            pool,
            f"{plane}-{tier}-{dtype}-{first}",
            first,
            2 if first > 1000 else 3,
            between,
            salt=f"{plane}{tier}".encode(),
        )
        from_tier = cache.totals.tokens_from_nvme if tier == "nvme" else cache.totals.tokens_from_dram
        assert from_tier == cache.totals.tokens_loaded > first


def test_shared_prefix_is_found_by_another_session(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    system = tokens(100, seed=1)
    kept = DynamicCache(config=model.config)
    first = torch.cat([system, tokens(30, seed=2)], dim=1)
    ours = TurnKVCache(model, "shared-a", pool, salt=b"shared")
    assert ours.begin(first) == 0
    ours.end_turn(say(model, first, ours).sequences)
    say(model, first, kept)
    second = torch.cat([system, tokens(50, seed=3)], dim=1)
    other = TurnKVCache(model, "shared-b", pool, salt=b"shared")
    assert other.begin(second) == 96
    assert same(say(model, second, other), say(model, second, cut(kept, 96)))


def test_last_token_is_always_computed(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    for length in (64, 65, 80, 93):
        prompt = tokens(length, seed=length)
        cache = TurnKVCache(model, f"same-{length}", pool, salt=b"same")
        cache.begin(prompt)
        model(input_ids=prompt, past_key_values=cache, use_cache=True)
        cache.end_turn(prompt)
        loaded = cache.begin(prompt)
        assert (length - 1) // 16 * 16 == loaded < length


def test_restart_and_kill_nine(make_server: Callable[..., Server]) -> None:
    server = make_server()
    model, pool = tiny_model(), server.pool(breaker_cooldown_ms=50)

    def restart() -> None:
        server.settle()
        server.kill()
        server.start()
        time.sleep(0.1)

    cache = converse(model, pool, "survivor", 200, 3, restart)
    assert cache.totals.tokens_from_nvme > 200


def test_durable_pages_survive_at_once(make_server: Callable[..., Server]) -> None:
    server = make_server()
    model, pool = tiny_model(), server.pool(breaker_cooldown_ms=50)
    prompt = tokens(160, seed=4)
    cache = TurnKVCache(model, "durable", pool, durable=True)
    cache.begin(prompt)
    report = cache.end_turn(say(model, prompt, cache).sequences)
    assert report.durable and report.pages_stored == 11, report
    server.kill()
    server.start()
    time.sleep(0.1)
    assert cache.begin(torch.cat([prompt, tokens(9, seed=5)], dim=1)) == 160


def test_a_turn_says_why_it_is_not_durable(make_server: Callable[..., Server]) -> None:
    model, pool = tiny_model(), make_server(nvme=None).pool()
    prompt = tokens(80, seed=4)
    cache = TurnKVCache(model, "fleeting", pool, durable=True)
    cache.begin(prompt)
    report = cache.end_turn(say(model, prompt, cache).sequences)
    assert report.pages_stored and not report.durable and report.misses["not_durable:no_tier"] >= 1, report
    assert cache.totals.misses["not_durable:no_tier"] >= 1


def poison(folder: pathlib.Path, page: bytes) -> int:
    """Flips one bit in the middle of every copy of `page` in the tier's files; how many there were."""
    found = 0
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            at = data.find(page)
            while at >= 0:
                with open(path, "r+b") as file:
                    file.seek(at + len(page) // 2)
                    file.write(bytes([data[at + len(page) // 2] ^ 0x10]))
                    file.flush()
                    os.fsync(file.fileno())
                found += 1
                at = data.find(page, at + len(page))
    return found


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_poisoned_byte_on_disk_is_a_miss(make_server: Callable[..., Server], restart: bool) -> None:
    server = make_server()
    model, pool = tiny_model(), server.pool(breaker_cooldown_ms=50)
    prompt = tokens(400, seed=6)
    cache = TurnKVCache(model, "poisoned", pool)
    cache.begin(prompt)
    kept = DynamicCache(config=model.config)
    ours = say(model, prompt, cache)
    say(model, prompt, kept)
    page = b"".join(  # page 10 as it lies in a slot: [layer, K/V, head, token, dim]
        part[0, :, 160:176].contiguous().numpy().tobytes() for layer in cache.layers for part in (layer.keys, layer.values)
    )
    cache.end_turn(ours.sequences, durable=True)
    if restart:
        server.kill()
    else:
        server.to_nvme()
    assert poison(server.folder / "nvme", page) >= 1
    if restart:
        server.start()
        time.sleep(0.1)
    longer = torch.cat([ours.sequences, tokens(20, seed=7)], dim=1)
    loaded = cache.begin(longer)
    assert loaded == 160, cache.turn
    if not restart:  # a start may find it first, and not serve the page at all
        assert cache.turn.misses["checksum"] == 1 and server.pool().stats()["corrupt_pages"] >= 1, cache.turn
    said = say(model, longer, cache)
    assert same(said, say(model, longer, cut(kept, loaded)))
    cache.end_turn(said.sequences)  # the recomputed pages take the place of the lost ones
    assert cache.begin(torch.cat([said.sequences, tokens(3, seed=8)], dim=1)) == said.sequences.shape[1] - 1


def test_poison_past_the_check_changes_tokens(server: Server) -> None:
    """The comparison above is sensitive: the same bits flipped in K and V that are used do change what the model says."""
    model, pool = tiny_model(), server.pool()
    prompt = tokens(400, seed=8)
    cache = TurnKVCache(model, "sensitive", pool, salt=b"sensitive")
    cache.begin(prompt)
    kept = DynamicCache(config=model.config)
    ours = say(model, prompt, cache)
    say(model, prompt, kept)
    cache.end_turn(ours.sequences)
    longer = torch.cat([ours.sequences, tokens(20, seed=9)], dim=1)
    loaded = cache.begin(longer)
    assert loaded > 400
    for layer in cache.layers:  # one page, one high bit of each value's exponent
        layer.values[0, :, 160:176].view(torch.int32).bitwise_xor_(1 << 27)
    assert not same(say(model, longer, cache), say(model, longer, cut(kept, loaded)))


def test_other_weights_other_tenant_other_salt_find_nothing(server: Server) -> None:
    pool, prompt = server.pool(), tokens(100, seed=10)
    model = tiny_model(seed=1)
    cache = TurnKVCache(model, "mine", pool)
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    longer = torch.cat([prompt, tokens(5, seed=11)], dim=1)
    assert TurnKVCache(model, None, pool).begin(longer) == 96
    assert TurnKVCache(tiny_model(seed=2), None, pool).begin(longer) == 0
    assert TurnKVCache(model, None, pool, tenant="other").begin(longer) == 0
    assert TurnKVCache(model, None, pool, salt=b"other").begin(longer) == 0
    assert TurnKVCache(tiny_model(torch.bfloat16, seed=1), None, pool).begin(longer) == 0


def test_fail_open_dead_server(make_server: Callable[..., Server]) -> None:
    server = make_server()
    model, pool = tiny_model(), server.pool(call_ms=500, breaker_cooldown_ms=50)
    prompt = tokens(100, seed=12)
    cache = TurnKVCache(model, "dead", pool)
    cache.begin(prompt)
    ours = say(model, prompt, cache)
    server.kill()
    assert cache.end_turn(ours.sequences).tokens_offloaded == 0
    started = time.monotonic()
    for _ in range(5):
        assert cache.begin(ours.sequences) == 0
        cache.end_turn(same_as_without(model, ours.sequences, cache))
    assert time.monotonic() - started < 8
    assert sum(n for cause, n in cache.totals.misses.items() if cause.startswith("error:")) >= 5
    server.start()
    time.sleep(0.1)
    assert cache.begin(prompt) == 0
    cache.end_turn(say(model, prompt, cache).sequences)
    assert cache.begin(ours.sequences) >= 96


def same_as_without(model: Qwen3ForCausalLM, prompt: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    """What the model says with `cache`, which must be what it says with no pool at all."""
    said = say(model, prompt, cache)
    assert same(said, say(model, prompt, DynamicCache(config=model.config)))
    return said.sequences


def test_fail_open_stopped_server(make_server: Callable[..., Server]) -> None:
    server = make_server()
    model, pool = tiny_model(), server.pool(call_ms=300, breaker_cooldown_ms=200)
    prompt = tokens(100, seed=13)
    cache = TurnKVCache(model, "stopped", pool)
    cache.begin(prompt)
    ours = say(model, prompt, cache)
    cache.end_turn(ours.sequences)
    server.pause()
    try:
        started = time.monotonic()
        assert cache.begin(ours.sequences) == 0
        assert time.monotonic() - started < 1.5
        said = same_as_without(model, ours.sequences, cache)
        started = time.monotonic()
        cache.end_turn(said)
        assert time.monotonic() - started < 1.5
    finally:
        server.go_on()
    time.sleep(0.3)
    assert cache.begin(torch.cat([ours.sequences, tokens(3, seed=14)], dim=1)) >= 96


def test_no_server_at_all() -> None:
    model = tiny_model()
    cache = TurnKVCache(model, "nobody", "unix:/nonexistent/turnkv.sock")
    prompt = tokens(40, seed=15)
    assert cache.begin(prompt) == 0
    same_as_without(model, prompt, cache)
    assert cache.turn.misses["error:unavailable"] + cache.turn.misses["error:deadline"] == 1


def test_full_pool_declines_and_goes_on(make_server: Callable[..., Server]) -> None:
    server = make_server(dram="16MiB", nvme=None)
    model, pool = tiny_model(), server.pool()
    for session in range(6):  # 3 MiB of K and V each
        prompt = tokens(2000, seed=100 + session)
        cache = TurnKVCache(model, f"full-{session}", pool)
        cache.begin(prompt)
        model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        report = cache.end_turn(prompt)
        assert not any(cause.startswith("error:") for cause in report.misses), report
        assert report.pages_stored + report.pages_present + report.pages_declined == 125


def test_fork_supersede_close_prefetch(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(130, seed=16)
    cache = TurnKVCache(model, "trunk", pool, salt=b"fork")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.end_turn(said, expected_return_ms=1000, ttl_ms=60_000, priority=1)
    assert cache.fork("branch")
    branch = TurnKVCache(model, "branch", pool, salt=b"fork")
    longer = torch.cat([said, tokens(8, seed=17)], dim=1)
    assert branch.begin(longer) == said.shape[1] - 1  # with the tail
    assert cache.prefetch()
    assert cache.supersede(64)
    assert cache.begin(longer) >= 64
    assert cache.close() and branch.close()


def test_beams_and_copies_of_a_loaded_cache(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(90, seed=18)
    cache = TurnKVCache(model, "beams", pool, salt=b"beams")
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    longer = torch.cat([prompt, tokens(9, seed=19)], dim=1)
    assert cache.begin(longer) == 80
    clone = copy.deepcopy(cache)
    assert type(clone) is DynamicCache and clone.get_seq_length() == 80
    beams = model.generate(longer, past_key_values=cache, max_new_tokens=4, num_beams=3, do_sample=False)
    assert beams.shape == (1, 103)
    assert cache.end_turn(beams).misses["skipped:batch"] == 1


def test_input_that_cannot_be_meant(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    for session in ("", "x" * 129, "a\nb"):
        with pytest.raises(ValueError, match="session"):
            TurnKVCache(model, session, pool)
    for page_tokens in (0, -1, 5000, "16"):
        with pytest.raises(ValueError, match="page_tokens"):
            TurnKVCache(model, "s", pool, page_tokens=page_tokens)
    cache = TurnKVCache(model, "input", pool)
    for ids in (torch.zeros(2, 5, dtype=torch.long), torch.zeros(5), [1.5], [-1], "text", None, [[1], [2]]):
        with pytest.raises(ValueError):
            cache.begin(ids)
    assert cache.begin([]) == 0 and cache.begin([5]) == 0
    prompt = tokens(40, seed=20)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    with pytest.raises(ValueError, match="all 51 tokens"):
        cache.end_turn(said[:, :20])
    with pytest.raises(ValueError, match="not those"):
        cache.end_turn(torch.zeros_like(said))
    assert cache.end_turn(said).tokens_offloaded == 51
    with pytest.raises(ValueError, match="no session"):
        TurnKVCache(model, None, pool).close()


def test_unsupported_models_are_refused_when_the_cache_is_made(server: Server) -> None:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=32,
        max_window_layers=2,
    )
    with pytest.raises(Unsupported, match="Sliding"):
        TurnKVCache(Qwen3ForCausalLM(config), "s", server.pool())
    with pytest.raises(Unsupported, match="float64"):
        TurnKVCache(tiny_model(torch.float64), "s", server.pool())


def test_fingerprint_sees_weights_and_configuration() -> None:
    model, twin = tiny_model(), tiny_model()
    before = model_fingerprint(model)
    assert before == model_fingerprint(twin) == model_fingerprint(model)
    assert before != model_fingerprint(tiny_model(seed=1))
    assert before != model_fingerprint(tiny_model(torch.bfloat16))
    twin.model.layers[1].self_attn.k_proj.weight.mul_(1.001)
    assert before != model_fingerprint(twin)
    model.config.rope_parameters = {**(model.config.rope_parameters or {}), "rope_theta": 12345.0}
    fresh = tiny_model()
    fresh.config.rope_parameters = model.config.rope_parameters
    assert before != model_fingerprint(fresh)
    with pytest.raises(ValueError, match="model_id"), torch.device("meta"):
        model_fingerprint(Qwen3ForCausalLM(fresh.config))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_cache_in_a_forked_child(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(64, seed=21)
    cache = TurnKVCache(model, "forked", pool, salt=b"child")
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if TurnKVCache(model, None, pool, model_id=cache._spec["model"], salt=b"child").begin(prompt) == 48 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.begin(torch.cat([prompt, prompt], dim=1)) >= 64
