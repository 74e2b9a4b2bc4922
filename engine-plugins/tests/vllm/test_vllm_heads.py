"""Where pages are cut by KV heads and where they are not: what vLLM says of layers, what their memory looks like, and the way
back to one shard a rank."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Greedy, prompt_of, whole_blocks
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

from turnkv.vllm import heads, pages


def full(kv_heads: int = 4, size: int = 64, **fields: Any) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=32, num_kv_heads=kv_heads, head_size=size, dtype=torch.float16, **fields)


def cut(spec: Any, ranks: int = 1, wanted: int | None = None, total: int | None = None) -> heads.Cut:
    """How one group of layers with this spec is cut on so many ranks."""
    per_rank = getattr(spec, "num_kv_heads", 1)
    model = SimpleNamespace(get_total_num_kv_heads=lambda: total or per_rank * ranks)
    parallel = SimpleNamespace(tensor_parallel_size=ranks, world_size=ranks)
    config = SimpleNamespace(model_config=model, parallel_config=parallel)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=["layer.0"])
    return heads.cut_of(config, SimpleNamespace(kv_cache_groups=[group]), 0, wanted)


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "wanted", "rank_shards"),
    [
        (4, 1, None, 4),  # fewer heads than the usual eight shards: one a head
        (8, 1, None, 8),
        (32, 1, None, 8),
        (12, 1, None, 4),  # the most that divide both
        (4, 2, None, 4),
        (1, 8, None, 1),
        (4, 2, 2, 1),
        (8, 1, 2, 2),
        (2, 2, 0, 1),  # off
    ],
)
def test_heads_are_cut_into_the_same_shards_on_any_number_of_ranks(
    kv_heads: int, ranks: int, wanted: int | None, rank_shards: int
) -> None:
    found = cut(full(kv_heads), ranks, wanted)
    assert (found.rank_shards, found.why_not) == (rank_shards, None)


@pytest.mark.parametrize(
    ("spec", "ranks", "wanted", "said"),
    [
        (full(5), 1, 2, "5 KV heads cannot be cut into canonical_shards=2"),
        (full(3), 2, 3, "3 shards cannot be split among 2 ranks"),
        (MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float16,)), 1, None, "do not say how their heads are stored"),
        (MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.float16), 2, None, "the one MLA vector"),
    ],
)
def test_what_cannot_be_cut_says_why_and_keeps_a_shard_a_rank(spec: Any, ranks: int, wanted: int | None, said: str) -> None:
    found = cut(spec, ranks, wanted)
    assert found.rank_shards == 1 and found.heads is None and said in str(found.why_not)


def test_ranks_that_share_a_head_are_not_cut() -> None:
    """Two heads over four ranks: vLLM copies them, and heads times ranks would be twice what there is."""
    found = cut(full(1), ranks=4, total=2)
    assert found == heads.Cut(why_not="its ranks hold copies of the same KV heads")


def test_one_mla_vector_is_one_shard() -> None:
    spec = MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.float16)
    assert cut(spec) == heads.Cut(1, 1)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((10, 4, 32, 128), 1),  # heads before tokens, K and V side by side
        ((20, 4, 16, 128), 1),  # the kernel's blocks are half of the engine's
        ((10, 2, 32, 4, 64), 3),  # K and V apart
        ((10, 4, 20, 128), None),  # no whole number of rows makes a block
        ((10, 32, 4, 128), None),  # heads where tokens should be
        ((10, 2, 4, 32, 64), None),
        ((10, 4, 32, 64), None),  # K or V alone: packed in a way that is not known
        ((10, 32 * 4 * 128), None),
        ((10, 4, 32, 128 + 8), None),  # scales behind every row
    ],
)
def test_the_heads_dimension_is_found_where_it_is_sure(shape: tuple[int, ...], axis: int | None) -> None:
    assert heads.axis_of(full(4, 64), torch.empty(shape, dtype=torch.float16)) == axis


def test_the_window_and_the_dtype_stay_in_a_pages_name_and_the_ranks_part_does_not() -> None:
    one, half = heads.lasting(full(8), heads.Cut(8, 8)), heads.lasting(full(4), heads.Cut(4, 8))
    assert one == half
    window = SlidingWindowSpec(block_size=32, num_kv_heads=8, head_size=64, dtype=torch.float16, sliding_window=64)
    wider = SlidingWindowSpec(block_size=32, num_kv_heads=8, head_size=64, dtype=torch.float16, sliding_window=96)
    assert len({str(heads.lasting(spec, heads.Cut(8, 8))) for spec in (full(8), window, wider)}) == 3


def named(groups: int = 1, cut: heads.Cut | None = None) -> bytes:
    """What an engine of so many groups calls its first one's pages."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config={}, dtype="f", quantization=None, seed=0, model="m"),
        cache_config=SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256_cbor"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        load_config=SimpleNamespace(load_format="auto", model_loader_extra_config={}, download_dir=None),
        kv_transfer_config=SimpleNamespace(engine_id="e"),
    )
    group = SimpleNamespace(kv_cache_spec=full(), layer_names=["layer.0"])
    return pages._salt(config, SimpleNamespace(kv_cache_groups=[group] * groups), 0, cut or heads.Cut(1, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_pages_of_several_groups_have_names_that_no_older_version_used(monkeypatch: pytest.MonkeyPatch, groups: int) -> None:
    """Older versions may have stored what another group wrote; with one group they were right, and their pages are found."""
    now = named(groups)
    monkeypatch.setattr(pages, "SEVERAL_GROUPS_FORMAT", 1)
    assert (named(groups) == now) == (groups == 1)


def test_engines_that_promise_the_same_bits_share_with_their_like_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for cut in (heads.Cut(1, 1), heads.Cut(why_not="it is not known how")):
        usual = named(cut=cut)
        with monkeypatch.context() as patch:
            patch.setattr(pages.compat, "is_batch_invariant", lambda: True)
            assert named(cut=cut) != usual


def cuts(scheduler: Any, worker: Any) -> dict[str, Any]:
    """What both sides of a connector settled on."""
    return {
        "uncut": (sorted(scheduler._uncut), sorted(worker._uncut)),
        "shards": [group.shards for group in scheduler._groups],
        "why_not": [cut.why_not for cut in scheduler._cuts.values()],
    }


@pytest.mark.parametrize("model", ["grouped", "hybrid"])
def test_memory_of_an_unknown_kind_goes_back_to_one_shard_a_rank(
    models: dict[str, pathlib.Path], pool_server: Any, reference: Greedy, start_engine: Any, model: str
) -> None:
    prompt = prompt_of(700, seed=31)
    connector = {"pool": pool_server.address, "lookup_ms": 10_000, "lookup_wait_ms": 1000, "load_ms": 30_000}
    engine = start_engine(models[model], connector, unknown_memory=True)
    first = engine.generate([prompt])[0]
    engine.drain()
    engine.forget()
    longer = prompt + first["tokens"] + prompt_of(40, seed=32)
    again = engine.generate([longer])[0]
    assert [first["tokens"], again["tokens"]] == [*reference([prompt, longer], model=model)]
    assert first["cached"] == 0 and again["cached"] == whole_blocks(prompt, first["tokens"]), "stored, and loaded"
    found = engine.run("test_vllm_heads", "cuts")
    assert found["uncut"][0] == found["uncut"][1] != [], "the scheduler's side heard of it"
    assert set(found["shards"]) == {1} and set(found["why_not"]) == {"its blocks are stored in an unknown way"}
