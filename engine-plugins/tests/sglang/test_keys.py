"""Names, parents, runs, options and namespaces: what needs neither an engine nor a pool."""

from __future__ import annotations

import hashlib
import pathlib
import types
from collections.abc import Sequence

import numpy
import pytest
from memory import LAYERS, PAGE, host_pool, slots
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from turnkv.checkpoint import WeightsName
from turnkv.sglang import identity, options
from turnkv.sglang.chain import ROOT, Chain, block_hash, block_hashes, cut, pages_in
from turnkv.sglang.identity import Rank, rank_of
from turnkv.sglang.restorable import restorable
from turnkv.sglang.runs import KV_LAYER_TOKEN, HostRuns


def keys(number: int, seed: int = 0) -> list[str]:
    """As SGLang makes them."""
    return [hashlib.sha256(f"{seed} {at}".encode()).hexdigest() for at in range(number)]


def test_names_are_sglangs_own_digests_or_digests_of_any_other_key() -> None:
    some = keys(3)
    assert block_hashes(some) == b"".join(bytes.fromhex(key) for key in some)
    other = [some[0], "page-7", some[1][:63] + "x"]
    packed = block_hashes(other)
    assert [cut(packed, at, at + 1) for at in range(3)] == [
        bytes.fromhex(some[0]),
        *(hashlib.sha256(key.encode()).digest() for key in other[1:]),
    ]
    blank = [" " * 64, some[0]]  # bytes.fromhex takes blanks for nothing
    assert pages_in(block_hashes(blank)) == 2 and block_hashes(blank)[32:] == block_hash(some[0])
    assert block_hashes([]) == b""


def test_parents_are_remembered_and_bounded() -> None:
    chain, packed = Chain(parents_max=4), block_hashes(keys(6))
    one = [cut(packed, at, at + 1) for at in range(6)]
    chain.learn(packed[: 3 * 32])
    assert chain.parent_of(one[0]) is None and chain.parent_of(one[1]) == one[0] and chain.parent_of(one[2]) == one[1]
    chain.learn(packed[: 3 * 32], ROOT)
    assert chain.parent_of(one[0]) == ROOT
    chain.learn(packed[3 * 32 :], one[2])
    assert [chain.parent_of(hash) is not None for hash in one] == [False, False, True, True, True, True]
    chain.clear()
    assert chain.parent_of(one[5]) is None


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_runs_are_where_sglang_says(layout: str) -> None:
    pool = host_pool(layout)
    runs, pages = HostRuns(pool), [5, 0, 15, 3]
    pointers, sizes = pool.get_page_buffer_meta(slots(pages))
    addresses = runs.addresses(slots(pages)).reshape(4, -1)
    order = [0, 2, 4, 1, 3, 5] if layout == "layer_first" else [0, 1]
    assert addresses.tolist() == numpy.array(pointers).reshape(4, -1)[:, order].tolist()
    assert runs.lengths == [sizes[at] for at in order] and sum(runs.lengths) == 2 * LAYERS * PAGE * 2 * 8 * 4
    assert (runs.layout == KV_LAYER_TOKEN) == (layout in ("layer_first", "page_first_direct"))


def test_pages_that_are_not_evenly_spaced_are_asked_for_one_by_one() -> None:
    pool = host_pool("page_first_direct")
    usual = pool.get_page_buffer_meta
    pool.get_page_buffer_meta = lambda indices: (
        [at + 64 * (int(indices[0]) // PAGE == 15) for at in usual(indices)[0]],
        usual(indices)[1],
    )
    addresses = HostRuns(pool).addresses(slots([1, 15]))
    assert addresses.tolist() == usual(slots([1]))[0] + [at + 64 for at in usual(slots([15]))[0]]


def test_partial_page_at_the_end_is_dropped() -> None:
    runs = HostRuns(host_pool("page_first_direct"))
    assert len(runs.addresses(slots([1, 2, 3])[:-1])) == 2 * len(runs.lengths)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tenat": "a"}, "tenat"),
        ({"deadline_ms": "5"}, "deadline_ms"),
        ({"threads": 0}, "threads"),
        ({"durable": 1}, "durable"),
        ({"pool": "foo"}, "option pool must be"),
    ],
)
def test_options_that_cannot_be_meant_are_named(given: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        options.parse(given)
    kept = options.parse({"backend_name": "turnkv", "interface_v1": 1, "tenant": "a", "pool": None, "threads": 4})
    assert (kept.tenant, kept.pool, kept.threads) == ("a", None, 4)


def test_every_rank_has_a_shard_unless_all_have_the_same_bytes() -> None:
    assert rank_of((1, 4), (0, 1), (0, 1), replicated=False) == Rank(1, 4, 0, 1)
    assert rank_of((1, 4), (0, 1), (0, 1), replicated=True) == Rank(0, 1, 0, 1, writes=False)
    assert rank_of((0, 4), (1, 2), (0, 1), replicated=True) == Rank(0, 1, 1, 2, writes=True)
    shards = [rank_of((tp, 2), (0, 1), (cp, 2), replicated=False).shard for tp in range(2) for cp in range(2)]
    assert sorted(shards) == [0, 1, 2, 3]


def test_whatever_changes_bytes_changes_the_namespace() -> None:
    usual = {
        "model": "m",
        "settings": {"quantization": None},
        "tenant": "",
        "pool_name": "kv",
        "layout": KV_LAYER_TOKEN,
        "dtype": "torch.bfloat16",
        "page_tokens": 16,
        "lengths": [512, 512],
    }
    others = [
        {"model": "n"},
        {"settings": {"quantization": "fp8"}},
        {"tenant": "t"},
        {"pool_name": "swa"},
        {"layout": "page_first"},
        {"dtype": "torch.float16"},
        {"page_tokens": 32},
        {"lengths": [1024, 1024]},
    ]
    spaces = [identity.namespace(Rank(), **usual | other) for other in ({}, *others)]
    spaces += [identity.namespace(rank, **usual) for rank in (Rank(0, 2), Rank(stage=1, stages=2), Rank(stages=2))]
    seen = {repr(sorted(space.items())) for space in spaces}
    assert len(seen) == len(spaces)
    assert identity.namespace(Rank(1, 2), **usual) == identity.namespace(Rank(0, 2), **usual)  # ranks meet in one


def named(path: str, others: Sequence[tuple[str, str | None]] = ()) -> str:
    """The name of a checkpoint, once it is known."""
    name = identity.weights_name(path, None, others)
    assert isinstance(name, WeightsName) and name.wait(60)
    return name.get()


def test_engines_that_promise_the_same_bits_share_with_their_like_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context

    def settings(**arguments: object) -> dict:
        monkeypatch.setattr(runtime_context, "get_server_args", lambda: types.SimpleNamespace(**arguments))
        return identity.engine_settings()

    plain = settings(dtype="bfloat16")
    assert settings(dtype="bfloat16", enable_deterministic_inference=False) == plain
    assert settings(dtype="bfloat16", enable_deterministic_inference=True) != plain


def test_fingerprint_follows_the_weights_and_not_the_place(models: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    names = {name: named(str(folder)) for name, folder in models.items()}
    assert names["one"] != names["other"] and names["one"].startswith("qwen3-")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in models["one"].iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert named(str(copy)) == names["one"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"1")
    adapted = named(str(copy), [(str(adapter), None)])
    (adapter / "adapter_model.safetensors").write_bytes(b"2")
    assert len({names["one"], adapted, named(str(copy), [(str(adapter), None)])}) == 3
    with open(copy / "model.safetensors", "r+b") as file:
        file.seek(5000)
        file.write(b"\x7f")
    assert named(str(copy)) != names["one"]
    assert identity.weights_name("nobody/no-such-model", None) != identity.weights_name("nobody/no-such-model", "v2")


def test_restorable_lengths_follow_each_pools_policy() -> None:
    hashes = block_hashes(keys(10))
    stored = {"kv": set(range(8)), "indexer": set(range(6)), "swa": {1, 2, 4, 5}, "none": set()}
    place = {cut(hashes, at, at + 1): at for at in range(10)}

    def found(name: str, asked: bytes) -> int:
        run = [place[cut(asked, at, at + 1)] in stored[name] for at in range(pages_in(asked))]
        return run.index(False) if False in run else len(run)

    def transfer(name: str, policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES, window: int = 1) -> PoolTransfer:
        return PoolTransfer(name=name, keys=["k"] * window, hit_policy=policy)

    kv, indexer = transfer(PoolName.KV), transfer(PoolName.INDEXER)
    window = transfer(PoolName.SWA, PoolHitPolicy.TRAILING_PAGES, 2)
    assert list(restorable(found, hashes, [kv])[0]) == list(range(1, 9))
    lengths, hits = restorable(found, hashes, [window, kv, indexer])
    assert list(lengths) == [3, 6] and hits[PoolName.INDEXER] == 6 and hits[PoolName.SWA] == 6
    stored["indexer"] = set()
    assert list(restorable(found, hashes, [kv, indexer, window])[0]) == []
    groups = transfer("groups", PoolHitPolicy.BLOCK_GROUPS)
    assert list(restorable(found, hashes, [kv, groups])[0]) == list(range(1, 9))
