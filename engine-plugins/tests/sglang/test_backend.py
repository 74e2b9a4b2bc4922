"""`HiCacheBackend` on SGLang's real host pools and a real TurnKV pool, without an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from memory import PAGE, host_pool, page_of, refill, slots, storage_config
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolHitPolicy, PoolName, PoolTransfer
from test_keys import keys

from turnkv.sglang import HiCacheBackend, hicache

Make = Callable[..., HiCacheBackend]


@pytest.fixture
def make(pool_server: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Backends whose pages no other test shares."""
    monkeypatch.setattr(hicache.identity, "engine_settings", dict)
    backends: list[HiCacheBackend] = []

    def make(layout: str = "page_first_direct", options: dict | None = None, **config: Any) -> HiCacheBackend:
        extra = {"interface_v1": 1, "pool": pool_server.address, "model_id": request.node.name} | (options or {})
        backends.append(HiCacheBackend(storage_config(extra_config=extra, **config), {}))
        backends[-1].register_mem_pool_host(host_pool(layout))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def after(prefix: list[str] | None) -> HiCacheStorageExtraInfo:
    """What SGLang says of the pages before a batch."""
    return HiCacheStorageExtraInfo(prefix_keys=prefix)


@pytest.mark.parametrize("target", ["layer_first", "page_first_direct", "page_first"])
@pytest.mark.parametrize("source", ["layer_first", "page_first_direct", "page_first"])
def test_pages_come_back_in_every_layout_that_holds_the_same_bytes(make: Make, source: str, target: str) -> None:
    one, other, some = make(source), make(target), keys(6)
    assert one.batch_set_v1(some, slots([3, 1, 4, 15, 9, 2]), after([])) == [True] * 6
    shared = source == target or "page_first" not in (source, target)
    assert other.batch_exists(some) == (6 if shared else 0)
    came = other.batch_get_v1(some, slots([0, 1, 2, 3, 4, 5]))
    assert came == [shared] * 6
    if shared:
        for at, page in enumerate([3, 1, 4, 15, 9, 2]):
            assert torch.equal(page_of(one.mem_pool_host, page), page_of(other.mem_pool_host, at))


def test_only_the_leading_run_counts(make: Make) -> None:
    backend, some = make(), keys(5)
    assert backend.batch_set_v1(some[:3], slots([0, 1, 2]), after([])) == [True] * 3
    assert backend.batch_exists(some) == 3 and backend.batch_exists(some[3:]) == 0
    assert backend.batch_get_v1(some, slots([5, 6, 7, 8, 9])) == [True, True, True, False, False]
    assert backend.exists(some[2]) and not backend.exists(some[3])


def test_the_page_before_comes_from_sglang_or_from_memory(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    backend, some = make(), keys(6)
    assert backend.batch_set_v1(some[:2], slots([0, 1]), after([])) == [True, True]
    assert backend.batch_set_v1(some[2:4], slots([2, 3]), after(some[:2])) == [True, True]
    assert backend.batch_exists(some[:4]) == 4
    with caplog.at_level(logging.ERROR, logger="turnkv.sglang"):
        assert backend.batch_set_v1(some[4:5], slots([4])) == [False]  # nobody said what comes before it
    assert "hicache_storage_pass_prefix_keys" in caplog.text
    backend.batch_exists(some)  # a query names them in order
    assert backend.batch_set_v1(some[4:], slots([4, 5])) == [True, True]
    assert backend.batch_exists(some) == 6 and backend.counts.get()["dropped:no_parent"] == 1


def test_pages_after_a_page_that_the_pool_lacks_are_declined(make: Make) -> None:
    backend, some = make(), keys(4)
    assert backend.batch_set_v1(some[2:], slots([2, 3]), after(some[:2])) == [False, False]
    assert backend.counts.get()["declined:no_parent"] == 2
    assert backend.batch_set_v1(some, slots([0, 1, 2, 3]), after([])) == [True] * 4
    assert backend.batch_exists(some) == 4


def test_partial_page_and_surplus_keys_are_dropped(make: Make) -> None:
    backend, some = make(), keys(3)
    assert backend.batch_set_v1(some, slots([0, 1, 2])[: 2 * PAGE + 1], after([])) == [True, True, False]
    assert backend.batch_exists(some) == 2
    assert backend.batch_set_v1(some[:1], slots([0])[: PAGE - 1], after([])) == [False]


def test_large_loads_go_in_pieces(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hicache, "PIECE_BYTES_MIN", 1)
    backend, some = make(options={"threads": 4}), keys(16)
    before = [page_of(backend.mem_pool_host, page) for page in range(16)]
    assert backend.batch_set_v1(some[:15], slots(list(range(15))), after([])) == [True] * 15
    refill(backend.mem_pool_host.kv_buffer)
    assert backend.batch_get_v1(some, slots(list(range(16)))) == [True] * 15 + [False]
    assert all(torch.equal(before[page], page_of(backend.mem_pool_host, page)) for page in range(15))


def test_a_page_is_there_only_when_every_rank_has_stored_its_shard(make: Make) -> None:
    ranks, some = [make(tp_rank=rank, tp_size=2) for rank in range(2)], keys(3)
    assert ranks[0].batch_set_v1(some, slots([0, 1, 2]), after([])) == [True] * 3
    assert [rank.batch_exists(some) for rank in ranks] == [0, 0]
    assert ranks[1].batch_set_v1(some[:2], slots([0, 1]), after([])) == [True] * 2
    assert [rank.batch_exists(some) for rank in ranks] == [2, 2]
    for rank in ranks:
        before = [page_of(rank.mem_pool_host, page) for page in (0, 1)]
        assert rank.batch_get_v1(some, slots([7, 8, 9])) == [True, True, False]
        assert all(torch.equal(page_of(rank.mem_pool_host, 7 + at), before[at]) for at in (0, 1))


def test_ranks_of_latent_attention_share_what_the_first_one_stored(make: Make) -> None:
    ranks, some = [make(tp_rank=rank, tp_size=2, is_mla_model=True) for rank in range(2)], keys(2)
    assert ranks[0].batch_set_v1(some, slots([0, 1]), after([])) == [True] * 2
    assert ranks[1].batch_exists(some) == 2 and ranks[1].batch_get_v1(some, slots([4, 5])) == [True] * 2
    assert torch.equal(page_of(ranks[0].mem_pool_host, 1), page_of(ranks[1].mem_pool_host, 5))


def test_nothing_is_shared_between_stages_tenants_and_models(make: Make) -> None:
    some = keys(2)
    assert make().batch_set_v1(some, slots([0, 1]), after([])) == [True] * 2
    assert make().batch_exists(some) == 2
    for other in (make(pp_rank=1, pp_size=2), make(options={"tenant": "b"}), make(options={"model_id": "else"})):
        assert other.batch_exists(some) == 0


def test_side_pools_keep_whole_prefixes_or_lone_windows(make: Make) -> None:
    backend, some = make(), keys(6)
    sides = {PoolName.INDEXER: host_pool("page_first_direct"), PoolName.SWA: host_pool("layer_first")}
    for name, side in sides.items():
        backend.register_mem_host_pool_v2(side, name)

    def transfer(name: PoolName, chosen: list[str], pages: list[int], window: bool = False) -> PoolTransfer:
        policy = PoolHitPolicy.TRAILING_PAGES if window else PoolHitPolicy.ALL_PAGES
        return PoolTransfer(name=name, keys=chosen, host_indices=slots(pages), hit_policy=policy)

    stored = [transfer(PoolName.INDEXER, some[:5], [0, 1, 2, 3, 4]), transfer(PoolName.SWA, some[2:4], [2, 3], window=True)]
    results = backend.batch_set_v2(stored, after([]))
    assert results == {PoolName.INDEXER: [True] * 5, PoolName.SWA: [True] * 2}
    asked = [PoolTransfer(name=PoolName.INDEXER), transfer(PoolName.SWA, some[:2], [0, 1], window=True)]
    assert backend.batch_exists_v2(some, asked).kv_hit_pages == 0  # nothing without K and V
    backend.batch_set_v1(some, slots([0, 1, 2, 3, 4, 5]), after([]))
    found = backend.batch_exists_v2(some, asked)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])  # pages 2 and 3 are the window of length 4
    assert found.extra_pool_hit_pages == {PoolName.KV: 6, PoolName.INDEXER: 5, PoolName.SWA: 4}
    assert backend.batch_exists_v2(some).restorable_prefix_pages == [1, 2, 3, 4, 5, 6]
    before = page_of(sides[PoolName.SWA], 3)
    assert backend.batch_get_v2([transfer(PoolName.SWA, some[3:4], [9], window=True)]) == {PoolName.SWA: [True]}
    assert torch.equal(page_of(sides[PoolName.SWA], 9), before)
    misfit = PoolTransfer(name=PoolName.SWA, keys=some[:2], host_indices=slots([1]))
    assert backend.batch_get_v2([misfit]) == {PoolName.SWA: [False, False]}


def test_flat_pages_one_by_one(make: Make) -> None:
    backend, some, pool = make("layer_first"), keys(3), None
    pool = backend.mem_pool_host
    backend.batch_set_v1(some[:1], slots([0]), after([]))
    backend.batch_exists(some)
    flat = [pool.get_data_page(at * PAGE) for at in (0, 1, 2)]
    assert backend.set(some[1], flat[1]) and backend.batch_set(some[2:], flat[2:])
    targets = [pool.get_dummy_flat_data_page() for _ in some]
    assert all(page is not None for page in backend.batch_get(some, targets))
    assert all(torch.equal(got, sent) for got, sent in zip(targets, flat, strict=True))
    assert backend.get(keys(1, seed=9)[0], pool.get_dummy_flat_data_page()) is None
    assert not backend.set(keys(1, seed=9)[0], flat[0])  # nobody said what comes before it


def test_metrics_are_of_what_was_moved(make: Make) -> None:
    backend, some = make(enable_storage_metrics=True), keys(4)
    backend.batch_set_v1(some[:3], slots([0, 1, 2]), after([]))
    backend.batch_get_v1(some, slots([0, 1, 2, 3]))
    stats = backend.get_stats()
    assert stats.backup_pgs == [3] and stats.prefetch_pgs == [3] and stats.prefetch_bandwidth[0] > 0
    assert backend.get_stats().prefetch_pgs == []
    assert make().get_stats() is None


def test_configurations_that_cannot_work_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="interface_v1"):
        make(options={"interface_v1": 0})
    with pytest.raises(ValueError, match="tp_lcm_size"):
        make(should_split_heads=True)
    with pytest.raises(ValueError, match="tenat"):
        make(options={"tenat": "b"})


def test_no_pool_is_a_miss_and_never_an_exception(make: Make, tmp_path: Any) -> None:
    backend, some = make(options={"pool": f"unix:{tmp_path}/nobody.sock", "deadline_ms": 100}), keys(3)
    for _ in range(5):
        assert backend.batch_exists(some) == 0
        assert backend.batch_set_v1(some, slots([0, 1, 2]), after([])) == [False] * 3
        assert backend.batch_get_v1(some, slots([0, 1, 2])) == [False] * 3
        assert backend.batch_exists_v2(some).kv_hit_pages == 0
    backend.clear()
    assert backend.counts.get()["error:breaker_open"] > 0


def test_pool_that_was_started_anew_is_used_again(make: Make, pool_server: Any) -> None:
    backend, some = make(), keys(3)
    backend.batch_set_v1(some, slots([0, 1, 2]), after([]))
    pool_server.settle()
    pool_server.kill()
    assert backend.batch_exists(some) == 0
    pool_server.start()
    backend._pool = backend._options.open_pool(2000)  # not to wait for the breaker
    backend._pages["kv"].door._door.pool = backend._pool
    assert backend.batch_exists(some) == 3 and backend.batch_get_v1(some, slots([4, 5, 6])) == [True] * 3


def test_anchor_without_memory_stores_nothing(make: Make, pool_server: Any, request: pytest.FixtureRequest) -> None:
    extra = {"interface_v1": 1, "pool": pool_server.address, "model_id": request.node.name}
    backend, some = HiCacheBackend(storage_config(extra_config=extra), {}), keys(2)
    backend.register_mem_pool_host(SimpleNamespace(kv_buffer=None))
    assert backend.batch_exists(some) == 0
    assert backend.batch_set_v1(some, slots([0, 1]), after([])) == [False, False]
    assert backend.batch_get_v1(some, slots([0, 1])) == [False, False]
    backend.close()


def test_clear_drops_the_pages_of_this_model_only(make: Make) -> None:
    backend, other, some = make(), make(options={"model_id": "another"}), keys(2)
    for one in (backend, other):
        one.batch_set_v1(some, slots([0, 1]), after([]))
    backend.clear()
    assert (backend.batch_exists(some), other.batch_exists(some)) == (0, 2)
