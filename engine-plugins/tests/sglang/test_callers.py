"""What a linker reads of the methods that call it: right in the SGLang that is installed, harmless where it is not there.

A new version of SGLang is a new pin in env/sglang.txt: these tests drive that version's own methods.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import sglang
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache import unified_tree_core
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper
from test_keys import keys
from test_linker import Make, look_up, make, transfer  # noqa: F401  `make` is a fixture

from turnkv.sglang import callers
from turnkv.sglang.callers import Callers
from turnkv.sglang.chain import ROOT, block_hash
from turnkv.sglang.door import Counts

PARENT, KEY = keys(2)


class Asking:
    """In place of a linker: what it is called by is read, as `Linker` reads it."""

    def __init__(self) -> None:
        self.counts, self.pools, self.read = Counts(), {PoolName.KV: None}, []
        self.callers = Callers(self.counts)

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        self.read.append(self.callers.parent_of_offload(transfers[0].keys[0], 4))
        return False

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        self.read.append(self.callers.request_of_lookup(rid))
        return []


def wrapper(linker: Any, **tree: Any) -> Any:
    """What SGLang's own methods need of the object that they are methods of."""
    cache = SimpleNamespace(
        tree_core=SimpleNamespace(is_eagle=False, **tree),
        page_size=4,
        insert_session_id=None,
        inc_lock_ref=lambda node: SimpleNamespace(to_dec_params=lambda: None),
        dec_lock_ref=lambda node, params: None,
    )
    component = SimpleNamespace(build_external_linker_transfer=lambda phase, node, hashes: transfer(hashes))
    return SimpleNamespace(
        cache=cache,
        cache_linker=linker,
        _components=(component,),
        _tail_hashes=lambda key, result, length: [KEY],
        _sync_restorable_prefix=lambda lengths, **_: 0,
        hit_markers={},
    )


def offloaded(state: Any, known: list[str]) -> tuple[bytes | None, Counts]:
    """What is read of SGLang's own method that offloads a node."""
    linker = Asking()
    tree = {"validate_buffer_backup": lambda node, tokens: state, "get_hash_values": lambda node: known}
    UnifiedCacheLinkerWrapper._offload_node(wrapper(linker, **tree), 7, [transfer([KEY])])
    return linker.read[0], linker.counts


def test_this_version_is_the_one_that_the_text_speaks_of() -> None:
    assert f"SGLang {sglang.__version__} " in (callers.__doc__ or "")


def test_the_page_before_is_read_of_sglangs_own_method() -> None:
    after = unified_tree_core.BufferBackupState
    fields = set(after.__struct_fields__ if hasattr(after, "__struct_fields__") else after.__annotations__)
    assert {"parent_is_root", "parent_last_hash"} <= fields
    for name in ("validate_buffer_backup", "get_hash_values"):
        assert callable(getattr(unified_tree_core.UnifiedTreeCore, name))
    for state, known, parent in [
        (SimpleNamespace(parent_is_root=True, parent_last_hash=None), [KEY], ROOT),
        (SimpleNamespace(parent_is_root=False, parent_last_hash=PARENT), [KEY], block_hash(PARENT)),
        (SimpleNamespace(parent_is_root=False, parent_last_hash=None), [KEY], None),
        (SimpleNamespace(parent_is_root=True, parent_last_hash=None), [PARENT], None),
        (None, [KEY], None),
    ]:
        read, counts = offloaded(state, known)
        assert read == parent and not counts.get(), (state, known)


def test_the_request_is_read_of_sglangs_own_method() -> None:
    linker, request = Asking(), SimpleNamespace(rid="r")
    key = type("Key", (list,), {"maybe_to_bigram_view": lambda self, _: (self, None)})([1] * 8)
    result = SimpleNamespace(device_prefix_len=0)
    assert UnifiedCacheLinkerWrapper.match(wrapper(linker), key, request, result) is result
    assert linker.read == [request] and not linker.counts.get()


def _other_names(linker: Any) -> None:
    linker.offload([transfer([KEY])])
    linker.lookup("r", [])


def _other_request(linker: Any) -> None:
    req = SimpleNamespace(rid="another")
    linker.offload([transfer([KEY])])
    linker.lookup("r", [])
    assert req


def _other_tree(self: Any) -> None:
    node_id, req = 7, None
    self.cache_linker.offload([transfer([KEY])])
    self.cache_linker.lookup("r", [])
    assert node_id and req is None


def raising(*_: Any) -> Any:
    raise RuntimeError("another tree")


@pytest.mark.parametrize(
    "call",
    [
        _other_names,
        _other_request,
        lambda linker: _other_tree(wrapper(linker)),
        lambda linker: _other_tree(wrapper(linker, validate_buffer_backup=raising)),
        lambda linker: _other_tree(wrapper(linker, validate_buffer_backup=lambda *_: object(), get_hash_values=lambda _: [KEY])),
        lambda linker: _other_tree(SimpleNamespace(cache_linker=linker)),
    ],
)
def test_another_caller_is_counted_and_said_once(call: Any, caplog: pytest.LogCaptureFixture) -> None:
    linker = Asking()
    with caplog.at_level(logging.WARNING, "turnkv.sglang"):
        for _ in range(3):
            call(linker)
    assert linker.read == [None] * 6 and linker.counts.get() == {"callers_unread": 6}
    assert len(caplog.records) == 2 and all(sglang.__version__ in record.message for record in caplog.records)


def test_without_a_parent_or_a_request_the_linker_goes_on(make: Make) -> None:
    """Pages behind a page that is not remembered are not stored, and SGLang is told; others are; a lookup finds what is there."""
    tree, some = make(), keys(4, seed=77)
    assert tree.linker.offload([transfer(some[:2], [0, 1])]) and tree.result() is False
    assert tree.linker.counts.get() == {"callers_unread": 1, "dropped:no_parent": 2}
    assert tree.linker.lookup("r", [transfer(some, [0] * 4)]) == []
    assert tree.linker.counts.get()["callers_unread"] == 2
    assert tree.offload(some[:2], [0, 1], None), "this caller has the node: the first page's parent is the root"
    assert tree.linker.offload([transfer(some[2:], [2, 3])]) and tree.result() is False
    assert tree.offload(some[1:2], [1], some[0]), "present, and its parent is remembered from here on"
    assert tree.linker.lookup("r", [transfer(some, [0] * 4)]) == [2]
    assert look_up(tree.linker, SimpleNamespace(rid="r"), some) == [2] and tree.linker.counts.get()["callers_unread"] == 4
