"""The slab form of TurnKVCache against the real server: exact, in place, trimmed, batched, bounded."""

from __future__ import annotations

import ctypes
import gc
import pathlib
from collections.abc import Callable

import pytest
import torch
from conftest import Server, tiny_model
from slab import DTYPES, NEW_TOKENS, PROMPTS, cut, dram, eventually, page, same, say, tokens
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, Qwen3Config, Qwen3ForCausalLM

from turnkv.transformers import TurnKVCache, Unsupported

# ---- exact, and in place --------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("tier", ["dram", "nvme"])
def test_every_turn_equals_a_cache_that_was_never_dropped(server: Server, tier: str, dtype: torch.dtype) -> None:
    model, pool = tiny_model(dtype), server.pool()
    for first in PROMPTS:
        kept, conversation = DynamicCache(config=model.config), tokens(first, seed=first)
        for turn in range(3):
            size = page(dtype) if tier == "dram" else 64  # all heads of a page mapped as one piece, or each by itself
            cache = TurnKVCache(model, f"exact-{first}", pool, page_tokens=size, salt=f"{tier}{dtype}".encode())
            assert cache._shapes[0].by_head == (tier == "nvme")
            loaded = cache.begin(conversation)
            ours = say(model, conversation, cache)
            theirs = say(model, conversation, cut(kept, loaded))
            assert same(ours, theirs), (first, turn, cache.turn)
            assert loaded == (conversation.shape[1] - 34 if turn else 0), cache.turn  # all but what is new
            report = cache.end_turn(ours.sequences)
            assert report.pages_stored == report.pages_in_place > 0 and report.pages_copied == 0, report
            assert report.pages_declined == 0 and not set(report.misses) - {"absent"}, report
            conversation = torch.cat([ours.sequences, tokens(33, seed=turn)], dim=1)
            if tier == "nvme":
                eventually(lambda: server.pool().stats()["leases"] == 0, "the turn's slots are given back")
                server.to_nvme()
        assert report.tokens_from_nvme == (loaded if tier == "nvme" else 0)


def test_a_second_turn_copies_no_page_at_all(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(321 - NEW_TOKENS, seed=1)  # 320 tokens have K and V at the turn's end: whole pages, no tail
    cache = TurnKVCache(model, "nocopy", pool, page_tokens=16, salt=b"nocopy")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    report = cache.end_turn(said)
    assert (report.pages_stored, report.pages_in_place, report.pages_copied) == (20, 20, 0), report
    assert cache.begin(torch.cat([said, tokens(5, seed=2)], dim=1)) == 320
    assert (cache.turn.pages_mapped, cache.turn.pages_copied) == (20, 0), cache.turn
    counts = cache.counts()
    assert (counts["held"], counts["owned"], counts["mapped"]) == (20, 0, 20), counts
    sessions = [TurnKVCache(model, f"nocopy-{at}", pool, page_tokens=16, salt=b"nocopy") for at in range(3)]
    before = dram(server)["used_bytes"]
    assert [other.begin(torch.cat([said, tokens(9, seed=at)], dim=1)) for at, other in enumerate(sessions)] == [320] * 3
    assert dram(server)["used_bytes"] == before, "a shared prefix is one copy for all who read it"


def test_default_pages_and_prompts_without_a_session(server: Server) -> None:
    model, pool = tiny_model(torch.bfloat16), server.pool()
    prompt = tokens(600, seed=3)
    cache = TurnKVCache(model, None, pool)
    assert cache.begin(prompt) == 0
    report = cache.end_turn(say(model, prompt, cache).sequences)
    assert report.tokens_offloaded == report.pages_stored * 128 == 512, "pages of this model have 128 tokens"
    kept = DynamicCache(config=model.config)
    say(model, prompt, kept)
    assert cache.begin(prompt) == 512
    assert same(say(model, prompt, cache), say(model, prompt, cut(kept, 512)))


def test_a_cache_that_is_kept_goes_on_and_shares_nothing_it_writes(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(100, seed=4)
    cache = TurnKVCache(model, "keep", pool, page_tokens=16, salt=b"keep")
    cache.begin(prompt)
    first = say(model, prompt, cache)
    assert cache.end_turn(first.sequences, keep=True).pages_stored == 9
    more = torch.cat([first.sequences, tokens(7, seed=5)], dim=1)
    other = TurnKVCache(model, "keep", pool, page_tokens=16, salt=b"keep")
    assert other.begin(more) == 139, "stored while the first cache looks at it"
    ours = say(model, more, cache)
    kept = DynamicCache(config=model.config)
    say(model, prompt, kept)
    assert same(ours, say(model, more, kept))
    assert same(say(model, more, other), ours), "what one wrote on did not change what the other reads"
    assert cache.end_turn(ours.sequences).tails_copied == 1


# ---- crop, batch, beams ---------------------------------------------------------------------------------------------


def test_crop(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(100, seed=6)
    cache = TurnKVCache(model, "crop", pool, page_tokens=16, salt=b"crop")
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    kept = DynamicCache(config=model.config)
    say(model, prompt, kept)
    assert cache.begin(torch.cat([prompt, say(model, prompt, None).sequences[:, 100:]], dim=1)) == 139
    for length in (133, 120, 96, 70):  # into a page that others read, to a page's end, further
        cache.crop(length - cache.get_seq_length())
        kept = cut(kept, length)
        branch = torch.cat([prompt[:, :length], tokens(max(length - 100, 0) + 9, seed=length)], dim=1)
        assert same(say(model, branch, cache, 5), say(model, branch, kept, 5)), length
    for wrong in (1, -1000):
        with pytest.raises(ValueError, match="crop"):
            cache.crop(wrong)
    again = TurnKVCache(model, "crop", pool, page_tokens=16, salt=b"crop")
    assert again.begin(torch.cat([prompt, tokens(50, seed=1)], dim=1)) == 96, "nothing written after a crop reached the pool"


@DTYPES
def test_a_batch_of_sessions(server: Server, dtype: torch.dtype) -> None:
    model, pool = tiny_model(dtype), server.pool()
    names, conversation = ["row-a", "row-b", "row-c"], tokens(90, seed=7, rows=3)
    kept = DynamicCache(config=model.config)
    for turn in range(3):
        cache = TurnKVCache(model, names, pool, page_tokens=page(dtype), salt=str(dtype).encode())
        loaded = cache.begin(conversation)
        assert loaded == (conversation.shape[1] - 34 if turn else 0), cache.turn
        ours = say(model, conversation, cache)
        assert same(ours, say(model, conversation, cut(kept, loaded))), turn
        report = cache.end_turn(ours.sequences)
        assert report.pages_in_place == report.pages_stored > 0 and not report.pages_declined, report
        conversation = torch.cat([ours.sequences, tokens(33, seed=turn, rows=3)], dim=1)
    alone = TurnKVCache(model, "row-b", pool, page_tokens=page(dtype), salt=str(dtype).encode())
    assert alone.begin(conversation[1:2]) == conversation.shape[1] - 34, "a row is a session like any other"


def test_what_a_batch_cannot_be_is_said(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    batch = TurnKVCache(model, ["a", "b"], pool, page_tokens=16)
    with pytest.raises(ValueError, match="equally long"):
        batch.begin([[1, 2, 3], [1, 2]])
    with pytest.raises(ValueError, match="3 rows of tokens for 2 sessions"):
        batch.begin(tokens(5, seed=1, rows=3))
    with pytest.raises(ValueError, match="padded"):
        batch.begin(tokens(5, seed=1, rows=2), attention_mask=torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]))
    for wrong in ([], ["a", "a"], ["a", None]):
        with pytest.raises(ValueError, match="one session a row"):
            TurnKVCache(model, wrong, pool, page_tokens=16)
    with pytest.raises(ValueError, match="page_tokens=16 are"):
        TurnKVCache(model, "a", pool, page_tokens=10)
    with pytest.raises(ValueError, match="sink goes with window"):
        TurnKVCache(model, "a", pool, sink=4)


def test_beams_and_samples_are_refused_with_what_to_do(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(40, seed=8)
    for settings in ({"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}):
        cache = TurnKVCache(model, "beams", pool, page_tokens=16)
        cache.begin(prompt)
        with pytest.raises(Unsupported, match="legacy=True"):
            model.generate(prompt, past_key_values=cache, max_new_tokens=4, **settings)
        with pytest.raises(Unsupported, match="num_beams=1"):
            cache.reorder_cache(torch.tensor([0]))
    legacy = TurnKVCache(model, "beams", pool, legacy=True)
    assert isinstance(legacy, TurnKVCache) and isinstance(legacy, DynamicCache)
    legacy.begin(prompt)
    assert model.generate(prompt, past_key_values=legacy, max_new_tokens=4, num_beams=2).shape == (1, 44)


# ---- trimmed --------------------------------------------------------------------------------------------------------


class Reference:
    """Greedy decoding on a DynamicCache that keeps everything, with masks that hide what a trimmed cache has not."""

    def __init__(self, model, size: int, sink: int, window: int) -> None:
        self.model, self.size, self.sinks, self.window = model, size, -(-sink // size), window
        self.cache = DynamicCache(config=model.config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        past, new = self.cache.get_seq_length(), ids.shape[1]
        first = max(self.sinks, (past - self.window) // self.size) * self.size
        seen = torch.ones(new, past + new, dtype=torch.bool).tril(past)
        seen[:, self.sinks * self.size : first] = False
        positions = torch.arange(past, past + new)[None]
        out = self.model(
            input_ids=ids, past_key_values=self.cache, attention_mask=seen[None, None], position_ids=positions, use_cache=True
        )
        return out.logits[:, -1]

    def say(self, prompt: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        logits, all_logits = self.forward(prompt[:, self.cache.get_seq_length() :]), []
        for _ in range(new_tokens):
            all_logits.append(logits)
            prompt = torch.cat([prompt, logits.argmax(-1, keepdim=True)], dim=1)
            if len(all_logits) < new_tokens:
                logits = self.forward(prompt[:, -1:])
        return prompt, all_logits


@pytest.mark.parametrize(("sink", "window", "first"), [(16, 64, 40), (4, 100, 300), (0, 64, 200), (40, 50, 90)])
def test_trimming_equals_an_explicit_mask(server: Server, sink: int, window: int, first: int) -> None:
    model, pool = tiny_model(), server.pool()
    reference, conversation = Reference(model, 16, sink, window), tokens(first, seed=first)
    for turn in range(3):
        cache = TurnKVCache(model, f"trim-{sink}-{window}", pool, page_tokens=16, sink=sink, window=window, salt=b"trim")
        loaded = cache.begin(conversation)
        assert loaded > conversation.shape[1] - 36 if turn else loaded == 0, cache.turn
        cut(reference.cache, loaded)
        ours = say(model, conversation, cache, 150)
        said, logits = reference.say(conversation, 150)
        assert torch.equal(ours.sequences, said), turn
        for got, wanted in zip(ours.logits, logits, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
        assert said.shape[1] > 1.5 * (sink + window), "the session is half as long again as what is kept, or more"
        assert cache.get_seq_length() == said.shape[1] - 1, "positions are those of the whole sequence"
        assert cache.counts()["mapped"] <= -(-sink // 16) + -(-window // 16) + 1
        report = cache.end_turn(ours.sequences)
        assert report.pages_declined == 0 and report.pages_copied == 0, report
        conversation = torch.cat([said, tokens(33, seed=turn)], dim=1)
    other = TurnKVCache(model, "somebody else", pool, page_tokens=16, sink=sink, window=window, salt=b"trim")
    assert other.begin(conversation) == 0, "what was seen with other tokens forgotten is this session's own"


def test_a_trimmed_cache_sees_what_it_should_and_no_more(server: Server) -> None:
    """The reference would not notice a cache that keeps everything if forgetting changed nothing."""
    model, pool = tiny_model(), server.pool()
    prompt = tokens(40, seed=9)
    full = say(model, prompt, DynamicCache(config=model.config), 150)
    cache = TurnKVCache(model, "forget", pool, page_tokens=16, sink=16, window=64)
    cache.begin(prompt)
    trimmed = say(model, prompt, cache, 150)
    assert not torch.allclose(full.logits[-1], trimmed.logits[-1], atol=1e-3)
    with pytest.raises(ValueError, match="trimmed"):
        cache.crop(-120)


def gemma(dtype: torch.dtype) -> Gemma3ForCausalLM:
    torch.manual_seed(1)
    config = Gemma3TextConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=48,
        max_position_embeddings=4096,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Gemma3ForCausalLM(config).to(dtype).eval()


def sliding_qwen(dtype: torch.dtype) -> Qwen3ForCausalLM:
    torch.manual_seed(2)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        use_sliding_window=True,
        sliding_window=40,
        layer_types=["sliding_attention"] * 3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).to(dtype).eval()


@DTYPES
@pytest.mark.parametrize("make", [gemma, sliding_qwen])
def test_models_with_sliding_windows(server: Server, make: Callable, dtype: torch.dtype) -> None:
    model, pool = make(dtype), server.pool()
    for first in (30, 200):
        kept, conversation = DynamicCache(config=model.config), tokens(first, seed=first)
        for turn in range(3):
            cache = TurnKVCache(model, f"slide-{first}", pool, page_tokens=page(dtype), salt=f"{make.__name__}{dtype}".encode())
            loaded = cache.begin(conversation)
            assert loaded > conversation.shape[1] - 36 if turn else loaded == 0, cache.turn
            ours = say(model, conversation, cache, 120)
            assert loaded == kept.get_seq_length(), "a DynamicCache cannot go back behind its window, and need not"
            theirs = say(model, conversation, kept, 120)
            assert same(ours, theirs), (first, turn)
            report = cache.end_turn(ours.sequences)
            assert report.pages_declined == 0 and report.pages_copied == 0, report
            conversation = torch.cat([ours.sequences, tokens(33, seed=turn)], dim=1)


# ---- bounded --------------------------------------------------------------------------------------------------------


def private_bytes() -> int:
    """Resident memory that this process has to itself, but for what its allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Private_Dirty:"))


def mapped_bytes(caches: list) -> int:
    """Resident memory in the address ranges of these caches, the pool's and private, as the kernel counts it."""
    spans = [group.span for cache in caches for group in cache._memory.groups.values()]
    total, ours = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and ":" not in fields[0]:
            low = int(fields[0].split("-")[0], 16)
            ours = any(0 <= low - span.address < span.bytes for span in spans)
        elif ours and fields[0] == "Rss:":
            total += int(fields[1]) << 10
    return total


def test_memory_of_sessions_is_what_they_keep(make_server: Callable[..., Server]) -> None:
    server, sessions, sink, window = make_server(dram="128MiB"), 10, 16, 1024
    model, pool = tiny_model(), server.pool()
    analytic = sessions * (sink + window) * 3 * 2 * 32 * 2 * 4  # layers, kv heads, head dim, K and V, bytes of a number
    caches = [TurnKVCache(model, f"bar-{at}", pool, page_tokens=16, sink=sink, window=window) for at in range(sessions)]

    def converse(cache, seed: int) -> None:
        conversation = tokens(1500, seed=seed)
        cache.begin(conversation)
        for start in range(0, 1500, 250):  # in pieces, as a long prompt would come
            model(input_ids=conversation[:, start : start + 250], past_key_values=cache, use_cache=True)
        say(model, torch.cat([conversation, tokens(1, seed=seed)], dim=1), cache, 90)
        assert cache.get_seq_length() >= 1.5 * (sink + window)

    warm = TurnKVCache(model, "warm", pool, page_tokens=16, sink=sink, window=window)
    converse(warm, 99)  # allocators and libraries take what they take, once
    del warm
    eventually(lambda: dram(server)["leased_bytes"] == 0, "the first cache's slots are given back")
    before_used, before_private = dram(server)["used_bytes"], private_bytes()
    for at, cache in enumerate(caches):
        converse(cache, at)
    resident, gauge = mapped_bytes(caches), dram(server)
    assert resident <= 1.05 * analytic, (resident, analytic)
    spare = sum(cache.counts()["spare"] for cache in caches) * 16 * 3 * 2 * 32 * 2 * 4
    assert gauge["leased_bytes"] == resident + spare == gauge["used_bytes"] - before_used, (gauge, resident, spare)
    assert gauge["leased_bytes"] <= 1.05 * analytic, (gauge, analytic)
    grown = private_bytes() - before_private  # the interpreter's own heap breathes; a copy of K and V would be 1.0
    assert grown < 0.15 * analytic, (grown, analytic)
    caches.clear()
    del cache
    eventually(lambda: dram(server)["leased_bytes"] == 0, "a cache that is gone holds nothing")


def test_a_client_share_bounds_a_turn_and_the_rest_is_private(make_server: Callable[..., Server]) -> None:
    server = make_server(dram="64MiB")
    server.config.write_text(
        server.config.read_text() + "[limits]\nclient_slots_percent = 2\n"
    )  # 640 tokens of this model may be mapped
    server.terminate()
    server.start()
    model, pool = tiny_model(), server.pool()
    prompt = tokens(1500, seed=10)
    cache = TurnKVCache(model, "share", pool, page_tokens=16)
    assert cache.begin(prompt) == 0
    ours = say(model, prompt, cache, 8)
    kept = DynamicCache(config=model.config)
    assert same(ours, say(model, prompt, kept, 8))
    report = cache.end_turn(ours.sequences)
    assert report.pages_in_place > 0 < report.pages_copied and not report.pages_declined, report
    assert report.misses["declined:no_space"], report
    more = torch.cat([ours.sequences, tokens(20, seed=11)], dim=1)
    stored = report.tokens_offloaded
    assert cache.begin(more) == stored > 640, (stored, cache.turn)
    assert cache.turn.pages_mapped > 0 < cache.turn.pages_copied, cache.turn
    assert same(say(model, more, cache, 8), say(model, more, cut(kept, stored), 8))
    cache.drop()
    eventually(lambda: dram(server)["leased_bytes"] == 0, "everything is given back")
