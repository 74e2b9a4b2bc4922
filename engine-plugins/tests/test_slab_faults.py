"""The slab form of TurnKVCache when something goes wrong: a dead or hung pool, bad bytes, dead and forked clients."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
from conftest import Server, tiny_model
from slab import cut, dram, eventually, same, say, tokens
from transformers import DynamicCache

import turnkv
from turnkv.transformers import TurnKVCache


class Saboteur(threading.Thread):
    """Does something to the server in the middle of a generation."""

    def __init__(self, cache, at: int, what: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.cache, self.at, self.what = cache, at, what

    def run(self) -> None:
        while self.cache.get_seq_length() < self.at:
            time.sleep(0.001)
        self.what()


def interrupted(server: Server, what: Callable[[], None], **settings):
    """A second turn that reads shared pages while `what` happens; our tokens, and those that are right."""
    model, pool = tiny_model(), server.pool(breaker_cooldown_ms=50, call_ms=1000)
    prompt = tokens(200, seed=11)
    cache = TurnKVCache(model, "mid", pool, page_tokens=16, **settings)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.end_turn(said)
    kept = DynamicCache(config=model.config)
    say(model, prompt, kept)
    more = torch.cat([said, tokens(30, seed=12)], dim=1)
    assert cache.begin(more) == 239
    saboteur = Saboteur(cache, 300, what)
    saboteur.start()
    ours = say(model, more, cache, 400)
    saboteur.join()
    return model, cache, kept, ours, say(model, more, cut(kept, 239), 400)


def test_a_server_killed_in_mid_turn_changes_no_token(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.settle()
    model, cache, kept, ours, theirs = interrupted(server, server.kill)
    assert same(ours, theirs)
    server.start()
    time.sleep(0.2)
    report = cache.end_turn(ours.sequences)
    assert report.pages_copied > 0 and report.pages_in_place == 0, report
    again = torch.cat([ours.sequences, tokens(9, seed=13)], dim=1)
    assert cache.begin(again) == report.tokens_offloaded == 669, "the new server has the whole turn, by copies"
    assert same(say(model, again, cache, 8), say(model, again, kept, 8))


def test_a_server_stopped_past_every_deadline_changes_no_token(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.config.write_text(server.config.read_text() + "[limits]\nlease_ms = 300\nlease_grace_ms = 100\n")
    server.terminate()
    server.start()

    def stop() -> None:
        server.pause()
        time.sleep(1.5)
        server.go_on()

    model, cache, kept, ours, theirs = interrupted(server, stop)
    assert same(ours, theirs)
    time.sleep(0.5)
    # Everybody else takes every slot that the server would give: what this turn reads must not be among them.
    filler = server.pool().open_namespace("filler", dtype="u8", layout="opaque", opaque_shard_bytes=1 << 20)
    for at in range(60):
        filler.offload(bytes([at] * 32), [bytes([at]) * (1 << 20)], wait_ms=200)
    more = torch.cat([ours.sequences, tokens(5, seed=14)], dim=1)
    ours, theirs = say(model, more, cache, 8), say(model, more, kept, 8)
    assert same(ours, theirs), "mapped pages were not given to anybody"
    report = cache.end_turn(ours.sequences)
    assert report.tokens_offloaded == cache.totals.tokens_offloaded - 239 > 600, report
    eventually(lambda: server.pool().stats()["leases"] == 0, "nothing is held any more")
    assert server.pool().stats()["quarantined_bytes"] == 0


def test_no_pool_at_all_is_a_plain_cache(make_server: Callable[..., Server]) -> None:
    server = make_server()
    model, pool = tiny_model(), server.pool(breaker_cooldown_ms=50, call_ms=300, connect_ms=100)
    server.kill()
    prompt = tokens(100, seed=15)
    for window in ({}, {"sink": 16, "window": 48}):
        cache = TurnKVCache(model, "nobody", pool, page_tokens=16, **window)
        assert cache.begin(prompt) == 0
        ours = say(model, prompt, cache, 60)
        if not window:
            assert same(ours, say(model, prompt, DynamicCache(config=model.config), 60))
        report = cache.end_turn(ours.sequences)
        assert report.tokens_offloaded == 0 and any(miss.startswith("error:") for miss in report.misses), report
    server.start()
    time.sleep(0.2)
    cache = TurnKVCache(model, "nobody", pool, page_tokens=16)
    cache.begin(prompt)
    assert cache.end_turn(say(model, prompt, cache).sequences).pages_in_place == 9


def test_an_inline_pool_is_served_by_copies(server: Server) -> None:
    model, pool = tiny_model(), server.pool(data_plane="inline")
    prompt, kept = tokens(100, seed=16), DynamicCache(config=model.config)
    cache = TurnKVCache(model, "inline", pool, page_tokens=16, salt=b"inline")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    say(model, prompt, kept)
    with pytest.warns(UserWarning, match="cannot be mapped"):
        report = cache.end_turn(said)
    assert report.pages_copied == report.pages_stored == 9, report
    more = torch.cat([said, tokens(9, seed=17)], dim=1)
    assert cache.begin(more) == 139 and cache.turn.pages_copied == 9, cache.turn
    assert same(say(model, more, cache), say(model, more, kept))


def test_a_corrupt_page_is_a_miss(make_server: Callable[..., Server]) -> None:
    server = make_server(nvme=None)
    model, pool = tiny_model(), server.pool()
    prompt = tokens(200, seed=18)
    cache = TurnKVCache(model, "corrupt", pool, page_tokens=16)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    group = cache._memory.find(cache._shapes[0])  # mapped writable: a stray write after the commit is what must be found
    stray = group.kv[2][0, :, 70:71]
    store = cache._rows[0].store

    def store_and_scribble(*args, **kwargs):
        store(*args, **kwargs)
        stray.add_(1.0)

    cache._rows[0].store = store_and_scribble
    cache.end_turn(said)
    other = TurnKVCache(model, "corrupt", pool, page_tokens=16)
    loaded = other.begin(torch.cat([said, tokens(5, seed=19)], dim=1))
    assert loaded == 64 and other.turn.misses["checksum"] == 1, other.turn
    eventually(lambda: pool.stats()["corrupt_pages"] == 1, "the pool is told")
    more = torch.cat([said, tokens(5, seed=19)], dim=1)
    kept = DynamicCache(config=model.config)
    say(model, prompt, kept)
    assert same(say(model, more, other), say(model, more, cut(kept, 64)))


def test_a_forked_child_is_kept_out(server: Server) -> None:
    model, pool = tiny_model(), server.pool()
    prompt = tokens(60, seed=20)
    cache = TurnKVCache(model, "fork", pool, page_tokens=16, salt=b"fork")
    cache.begin(prompt)
    say(model, prompt, cache, 4)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cache.update(torch.zeros(1, 2, 1, 32), torch.zeros(1, 2, 1, 32), 0)
            os.write(writer, b"written")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"forked child" in os.read(reader, 1000)
    assert (
        cache.end_turn(
            say(model, torch.cat([prompt, tokens(9, seed=1)], dim=1), cache, 4).sequences[:, : cache.get_seq_length()]
        ).pages_declined
        == 0
    )


def test_a_killed_client_leaves_nothing_held(make_server: Callable[..., Server]) -> None:
    server = make_server()
    code = (
        "import sys, torch; sys.path[:0] = sys.argv[2:]\n"
        "from conftest import tiny_model\nfrom turnkv.transformers import TurnKVCache\n"
        "torch.set_grad_enabled(False); model = tiny_model()\n"
        "cache = TurnKVCache(model, 'gone', sys.argv[1], page_tokens=16)\n"
        "ids = torch.arange(300)[None] % 512; cache.begin(ids); model(input_ids=ids, past_key_values=cache)\n"
        "print('mapped', flush=True); sys.stdin.read()\n"
    )
    paths = [str(pathlib.Path(__file__).parent), str(pathlib.Path(turnkv.__file__).parents[1])]
    child = subprocess.Popen([sys.executable, "-c", code, server.address, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"mapped\n"
    assert dram(server)["leased_bytes"] > 0
    child.kill()
    child.wait()
    eventually(lambda: dram(server)["leased_bytes"] == 0 == dram(server)["used_bytes"], "a dead client's slots come back")
