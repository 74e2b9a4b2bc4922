"""Snapshots in a store that speaks S3: every verb, and stores that die, dawdle, are full, lie, or refuse conditional writes.

What was said to be archived is there, refusals say what to do, and nobody else's pages wait.
"""

from __future__ import annotations

import array
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy
import pytest
from conftest import ROOT, Server
from neighbour import Neighbour, p99
from s3 import Answer, Proxy, Request, Store, failure, in_environment

import turnkv

SHAPE = {"dtype": "bf16", "layers": 4, "kv_heads": 8, "head_dim": 64}
PAGE = 4 * 2 * 8 * 16 * 64 * 2
"""Bytes of a page of that: 128 KiB."""
PAGES = 24
REQUEST_MS, RETRIES = 2000, 1
WAITS_SECONDS_MAX = 0.5
"""What a neighbour's calls may take at the 99th percentile however busy this machine is: a quarter of what one request may."""

Chain = tuple[bytes, list[bytes]]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.kill()


class Shelf:
    """A bucket behind a proxy, and servers that use it."""

    def __init__(self, store: Store, bucket: str, make_server: Callable[..., Server], folder: pathlib.Path) -> None:
        store.make_bucket(bucket)
        self.proxy, self.bucket, self.make_server, self.folder = Proxy(store), bucket, make_server, folder
        (folder / "exports").mkdir()

    def server(self, **keys: object) -> Server:
        """A new server, with this archive and more keys of its section."""
        usual = {"endpoint": self.proxy.endpoint, "exports": str(self.folder / "exports")}
        bounds = {"request_ms": REQUEST_MS, "retries_max": RETRIES, "inflight_bytes": "1MiB"}
        values = {**usual, **bounds, **keys}
        text = "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())
        return self.make_server(dram="128MiB", archive=f"s3://{self.bucket}/some/where", archive_keys=text)

    def gets_back(self, snapshot: str, session: str, chain: Chain) -> None:
        """A new server restores it, to the byte."""
        server = self.server()
        assert server.snapshot("restore", snapshot)["restored_sessions"] == [session]
        assert_has(server, chain)
        server.kill()


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@pytest.fixture
def shelf(
    store: Store,
    make_server: Callable[..., Server],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Shelf]:
    in_environment(monkeypatch)
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())
    shelf = Shelf(store, name[-60:].strip("-"), make_server, tmp_path)
    yield shelf
    shelf.proxy.die()


def until(is_so: Callable[[], bool], seconds: float = 90) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)


def talk(server: Server, session: str, seed: int, pages: int = PAGES, archive: bool = False) -> Chain:
    """A session with so many pages, which is to be archived or not."""
    namespace = server.pool().open_namespace("model", **SHAPE)
    tokens = array.array("I", range(seed * 1_000_000, seed * 1_000_000 + 16 * pages)).tobytes()
    hashes, rng = turnkv.chain_hashes(tokens, 16), numpy.random.default_rng(seed)
    data = [rng.bytes(PAGE) for _ in range(pages)]
    namespace.begin_turn(session)
    assert namespace.offload(hashes, data, session=session, wait_ms=5000).stored == pages
    assert namespace.end_turn(session, hashes, archive=archive) == pages
    return hashes, data


def assert_has(server: Server, chain: Chain) -> None:
    hashes, data = chain
    targets = [bytearray(PAGE) for _ in data]
    namespace = server.pool().open_namespace("model", **SHAPE)
    assert namespace.reload(hashes, targets).pages == len(data) and targets == data


def names(server: Server) -> set[str]:
    return {one["snapshot"] for one in server.snapshot("list")["snapshots"]}


def assert_sound(server: Server, *snapshots: str) -> None:
    """These and no others are there, and good."""
    assert names(server) == set(snapshots)
    assert server.snapshot("verify")["faults_found"] == 0


def sometimes(often: int, harm: Callable[[Request, Callable[[], Answer]], Answer | None], what: Callable[[Request], bool]):
    """Does harm to the first so many of these requests."""
    left, lock = [often], threading.Lock()

    def decide(request: Request, ask: Callable[[], Answer]) -> Answer | None:
        with lock:
            hit = what(request) and left[0] > 0
            left[0] -= hit
        return harm(request, ask) if hit else ask()

    return decide


ALWAYS = 1 << 30


@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "unconditional"])
def test_every_verb(shelf: Shelf, conditional: bool) -> None:
    server = shelf.server(conditional_puts=conditional, grace_s=4)
    chain = talk(server, "chat", seed=1)
    made = server.snapshot("create", "--session", "chat")
    assert (made["pages"], made["missing_pages"]) == (PAGES, 0)
    conditions = sum(request[0] == "PUT" for request in shelf.proxy.seen)
    assert conditions >= 3, "the archive, a pack, a manifest"
    name = made["snapshot"]
    assert names(server) == {name}
    assert server.snapshot("show", name)["pages"] == PAGES
    assert server.snapshot("verify", name)["faults_found"] == 0
    fork = server.snapshot("fork", name, "--pages", "10", "--name", "half")["snapshot"]
    shelf.gets_back(fork, "half", (chain[0][: 32 * 10], chain[1][:10]))
    other = talk(server, "other", seed=2)
    gone = server.snapshot("create", "--session", "other")["snapshot"]
    server.snapshot("delete", gone)
    assert names(server) == {name, fork}
    deadline, deleted = time.monotonic() + 60, 0
    while not deleted:
        assert time.monotonic() < deadline, "what only a deleted snapshot needed stays"
        time.sleep(1)
        deleted = server.snapshot("collect")["packs_deleted"]
    assert_sound(server, name, fork)
    exported = server.snapshot("export", name, "carried", "--level", "1")
    check = ROOT / "examples/python/check_export.py"
    subprocess.run([sys.executable, str(check), exported["directory"]], check=True, capture_output=True)
    imported = server.snapshot("import", "carried")["snapshot"]
    assert imported != name
    server.destroy()
    shelf.gets_back(name, "chat", chain)
    shelf.gets_back(imported, "chat", chain)
    assert other[0] != chain[0]


def test_the_store_dies_in_the_middle_of_a_capture_and_of_a_restore(shelf: Shelf) -> None:
    server = shelf.server()
    first = talk(server, "first", seed=3)
    kept = server.snapshot("create", "--session", "first")["snapshot"]

    def dies(request: Request, ask: Callable[[], Answer]) -> Answer | None:
        shelf.proxy.die()
        return None

    def dies_after(request: Request, ask: Callable[[], Answer]) -> Answer | None:
        ask()
        shelf.proxy.die()
        return None

    there = 1
    for seed, (harm, what) in enumerate([(dies, "packs"), (dies_after, "packs"), (dies, "manifests"), (dies_after, "manifests")]):
        session = f"{harm.__name__}-{what}"
        chain = talk(server, session, seed=40 + seed)
        shelf.proxy.tell(sometimes(1, harm, lambda request, what=what: request.is_put_of(what)))
        complaint = server.refused_snapshot("create", "--session", session)
        assert "the store is unreachable" in complaint and "try again later" in complaint, complaint
        assert "unreachable" in server.refused_snapshot("list")
        assert_has(server, chain)
        shelf.proxy.tell(None)
        shelf.proxy.revive()
        # A manifest that reached the store is a whole snapshot; one that did not is none.
        there += (harm, what) == (dies_after, "manifests")
        assert server.snapshot("verify")["faults_found"] == 0
        assert kept in names(server) and len(names(server)) == there
        made = server.snapshot("create", "--session", session)["snapshot"]
        there += 1
        shelf.gets_back(made, session, chain)

    third = shelf.server()
    shelf.proxy.tell(sometimes(1, dies, lambda request: request.is_get_of("packs") and "bytes=-" not in request.headers["range"]))
    complaint = third.refused_snapshot("restore", kept)
    assert "the store is unreachable" in complaint, complaint
    assert third.pool().stats()["sessions"] == 0, "no half of a session is there"
    shelf.proxy.tell(None)
    shelf.proxy.revive()
    assert third.snapshot("restore", kept)["restored_sessions"] == ["first"]
    assert_has(third, first)
    assert server.snapshot("verify")["faults_found"] == 0


def test_a_store_that_is_killed_and_loses_everything_harms_no_server(
    shelf: Shelf, make_server: Callable[..., Server], tmp_path: pathlib.Path
) -> None:
    own = Store()
    own.make_bucket(shelf.bucket)
    shelf.proxy.store = own
    server = shelf.server()
    chain = talk(server, "chat", seed=5)
    name = server.snapshot("create", "--session", "chat")["snapshot"]
    killing = threading.Event()

    def kills(request: Request, ask: Callable[[], Answer]) -> Answer | None:
        own.kill()
        killing.set()
        return None

    shelf.proxy.tell(sometimes(1, kills, lambda request: request.is_get_of("packs")))
    assert "the store is unreachable" in server.refused_snapshot("verify", name)
    assert killing.is_set()
    assert_has(server, chain)
    assert "the store is unreachable" in server.refused_snapshot("create", "--session", "chat")


def slow(seconds: float) -> Callable[[Request, Callable[[], Answer]], Answer | None]:
    def harm(request: Request, ask: Callable[[], Answer]) -> Answer | None:
        time.sleep(seconds)
        return ask()

    return harm


def test_a_slow_store_is_given_up_in_time_and_slows_nobody(shelf: Shelf) -> None:
    server = shelf.server()
    chain = talk(server, "chat", seed=6)
    quiet = Neighbour(server.address)
    kept = server.snapshot("create", "--session", "chat")["snapshot"]
    server.snapshot("verify")
    time.sleep(1)
    quiet_seconds = quiet.seconds()
    talk(server, "more", seed=7)

    shelf.proxy.tell(slow(2 * REQUEST_MS / 1000))
    busy, began = Neighbour(server.address), time.monotonic()
    for verb in (("create", "--session", "more"), ("restore", kept, "--as", "again"), ("verify",)):
        complaint = server.refused_snapshot(*verb)
        assert "no answer within 2s" in complaint and "try again later" in complaint, complaint
    took = time.monotonic() - began
    waits = p99(busy.seconds())
    assert waits < max(WAITS_SECONDS_MAX, 10 * p99(quiet_seconds)), (waits, p99(quiet_seconds))
    # Three verbs that fail at their first request, each tried twice; far from what they would take with all of theirs.
    assert took < 3 * (RETRIES + 1) * REQUEST_MS / 1000 + 20, took

    shelf.proxy.tell(slow(0.1))
    made = server.snapshot("create", "--session", "more")["snapshot"]
    shelf.proxy.tell(None)
    assert_sound(server, kept, made)
    shelf.gets_back(kept, "chat", chain)


def test_a_store_that_hangs_costs_a_turn_its_wait_once_and_the_session_is_found_again(shelf: Shelf) -> None:
    keys = {"sessions": "asked", "refresh_ms": 200}
    first = shelf.server(**keys)
    chain = talk(first, "chat", seed=15, archive=True)
    until(lambda: len(names(first)) == 1)
    first.kill()

    wait_seconds, answer_seconds = 1.0, 3.0
    server = shelf.server(**keys, wait_ms=int(1000 * wait_seconds), request_ms=int(1000 * answer_seconds), retries_max=0)
    namespace = server.pool().open_namespace("model", **SHAPE)
    hashes, data = chain
    until(lambda: namespace.lookup(hashes) == PAGES)
    shelf.proxy.tell(slow(2 * answer_seconds))
    targets = [bytearray(PAGE) for _ in data]
    began = time.monotonic()
    assert namespace.reload(hashes, targets, deadline_ms=20_000).pages == 0
    took = time.monotonic() - began
    assert 0.9 * wait_seconds <= took < answer_seconds, took
    until(lambda: namespace.lookup(hashes) == 0)  # when the request's own time is over
    began = time.monotonic()
    assert namespace.reload(hashes, targets, deadline_ms=20_000).pages == 0
    assert time.monotonic() - began < wait_seconds / 2, "nobody waits for it again"

    shelf.proxy.tell(None)
    until(lambda: namespace.lookup(hashes) == PAGES)
    until(lambda: namespace.reload(hashes, targets, deadline_ms=20_000).pages == PAGES)
    assert targets == data


def test_a_full_store_refuses_and_keeps_what_it_has(shelf: Shelf) -> None:
    server = shelf.server()
    chain = talk(server, "chat", seed=8)
    kept = server.snapshot("create", "--session", "chat")["snapshot"]
    talk(server, "more", seed=9)
    answers = {
        (507, "InsufficientStorage"): "there is no room",
        (400, "XMinioStorageFull"): "there is no room",
        (403, "AccessDenied"): "the store does not allow it",
        (400, "ExpiredToken"): "the store does not allow it",
        (503, "SlowDown"): "the store is unreachable",
        (500, "InternalError"): "the store is unreachable",
    }
    neighbour = Neighbour(server.address)
    for (status, code), words in answers.items():
        shelf.proxy.tell(lambda request, ask, a=(status, code): failure(*a) if request.method == "PUT" else ask())
        complaint = server.refused_snapshot("create", "--session", "more")
        assert words in complaint and code in complaint, complaint
        shelf.proxy.tell(None)
        assert names(server) == {kept}
    assert p99(neighbour.seconds()) < WAITS_SECONDS_MAX
    # Once is no reason to give up.
    shelf.proxy.tell(sometimes(1, lambda request, ask: failure(503, "SlowDown"), lambda request: request.is_put_of("packs")))
    made = server.snapshot("create", "--session", "more")["snapshot"]
    assert_sound(server, kept, made)
    shelf.gets_back(kept, "chat", chain)


def test_a_store_that_lies_is_found_out(shelf: Shelf) -> None:
    server = shelf.server()
    chain = talk(server, "chat", seed=10)

    def wrong_tags(request: Request, ask: Callable[[], Answer]) -> Answer:
        answer = ask()
        answer.headers["ETag"] = f'"{time.monotonic_ns():032x}"'
        return answer

    # Nothing rests on what a store calls its objects' contents.
    shelf.proxy.tell(wrong_tags)
    kept = server.snapshot("create", "--session", "chat")["snapshot"]
    shelf.gets_back(kept, "chat", chain)
    shelf.proxy.tell(None)
    assert_sound(server, kept)

    def swallowed(request: Request, ask: Callable[[], Answer]) -> Answer:
        return Answer(200, {"ETag": '"0123456789abcdef0123456789abcdef"'}, b"")

    def halved(request: Request, ask: Callable[[], Answer]) -> Answer:
        length = len(request.body) // 2
        request.body = request.body[:length]
        request.headers = {**request.headers, "content-length": str(length)}
        return ask()

    for seed, (lie, words) in enumerate([(swallowed, "is not there"), (halved, "is damaged")]):
        talk(server, f"lie-{seed}", seed=20 + seed)
        shelf.proxy.tell(sometimes(ALWAYS, lie, lambda request: request.is_put_of("packs")))
        complaint = server.refused_snapshot("create", "--session", f"lie-{seed}")
        assert words in complaint and "pack " in complaint, complaint
        shelf.proxy.tell(None)
        assert_sound(server, kept)


def test_an_answer_that_comes_short_or_damaged_is_read_again_and_never_believed(shelf: Shelf) -> None:
    server = shelf.server()
    chain = talk(server, "chat", seed=11)
    kept = server.snapshot("create", "--session", "chat")["snapshot"]

    def cut_off(request: Request, ask: Callable[[], Answer]) -> Answer:
        answer = ask()
        answer.sent = len(answer.body) // 2
        return answer

    def shorter(request: Request, ask: Callable[[], Answer]) -> Answer:
        answer = ask()
        answer.body = answer.body[: len(answer.body) // 2]
        return answer

    def garbled(request: Request, ask: Callable[[], Answer]) -> Answer:
        answer = ask()
        at = len(answer.body) // 2
        answer.body = answer.body[:at] + bytes([answer.body[at] ^ 4]) + answer.body[at + 1 :]
        return answer

    for what in ("packs", "manifests"):
        for harm in (cut_off, shorter, garbled):

            def is_it(request: Request, what: str = what) -> bool:
                return request.is_get_of(what)

            shelf.proxy.tell(sometimes(1, harm, is_it))
            shelf.gets_back(kept, "chat", chain)
            shelf.proxy.tell(sometimes(ALWAYS, harm, is_it))
            fresh = shelf.server()
            complaint = fresh.refused_snapshot("restore", kept)
            told = ("is damaged", "the store is unreachable")
            assert any(words in complaint for words in told), complaint
            assert fresh.pool().stats()["sessions"] == 0
            shelf.proxy.tell(None)
            # The same server reads it when the store tells the truth again.
            assert fresh.snapshot("restore", kept)["restored_sessions"] == ["chat"]
            assert_has(fresh, chain)
            fresh.kill()
    assert_sound(server, kept)


def test_a_store_that_refuses_conditional_writes(shelf: Shelf) -> None:
    def is_conditional(request: Request) -> bool:
        return any(name.lower() == "if-none-match" for name in request.headers)

    def unknown(request: Request, ask: Callable[[], Answer]) -> Answer:
        return failure(501, "NotImplemented") if is_conditional(request) else ask()

    shelf.proxy.tell(unknown)
    server = shelf.server()
    chain = talk(server, "chat", seed=12)
    complaint = server.refused_snapshot("create", "--session", "chat")
    assert "conditional_puts" in complaint and "If-None-Match" in complaint, complaint
    assert names(shelf.server(conditional_puts=False)) == set()

    # One that does not know the header, and writes: names are new anyway.
    def ignoring(request: Request, ask: Callable[[], Answer]) -> Answer:
        request.headers = {name: value for name, value in request.headers.items() if name.lower() != "if-none-match"}
        return ask()

    shelf.proxy.tell(ignoring)
    kept = server.snapshot("create", "--session", "chat")["snapshot"]
    # One that says that everything is there already, or that somebody else is at it.
    more = talk(server, "more", seed=13)
    for status, code in [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")]:
        shelf.proxy.tell(lambda request, ask, a=(status, code): failure(*a) if is_conditional(request) else ask())
        complaint = server.refused_snapshot("create", "--session", "more")
        assert "it exists and it does not" in complaint and "try again later" in complaint, complaint
    # Once is no reason to give up, nor is a write that was done before.
    refusing = sometimes(1, lambda request, ask: failure(409, "ConditionalRequestConflict"), is_conditional)
    twice = sometimes(ALWAYS, lambda request, ask: (ask(), ask())[1], is_conditional)
    for seed, harm in enumerate((refusing, twice)):
        shelf.proxy.tell(harm)
        server.snapshot("create", "--session", "more")
        assert len(names(server)) == seed + 2
    shelf.proxy.tell(None)
    assert server.snapshot("verify")["faults_found"] == 0
    plain = shelf.server(conditional_puts=False)
    shelf.proxy.tell(unknown)
    talk(plain, "plain", seed=14)
    made = plain.snapshot("create", "--session", "plain")["snapshot"]
    assert made in names(plain)
    shelf.proxy.tell(None)
    shelf.gets_back(kept, "chat", chain)
    assert_has(server, more)
