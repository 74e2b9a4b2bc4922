"""Names of checkpoints: every byte counts, the hub's own digests are used, files are hashed once and remembered."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import pathlib
import time
from collections.abc import Iterator

import pytest
from hashing import held

import turnkv
from turnkv import _file_digests, checkpoint
from turnkv.checkpoint import WeightsName, checkpoint_digest
from turnkv.connector.door import Door, GroupPages, PoolOptions

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def own_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A memory of digests that is the test's own; files of a test are young, and remembered all the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_file_digests, "SETTLED_SECONDS", -1.0)
    yield tmp_path / "cache/turnkv/checkpoints.json"


def write(folder: pathlib.Path, shards: int = 2, size: int = 3 << 20) -> pathlib.Path:
    """A checkpoint with bytes that repeat nowhere."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "auto_map": {}}')
    for shard in range(shards):
        (folder / f"model-{shard}.safetensors").write_bytes(content(shard, size))
    return folder


def content(seed: int, size: int) -> bytes:
    return hashlib.shake_256(seed.to_bytes(4, "little")).digest(size)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed from here on."""
    hashed: list[str] = []
    hash_one = _file_digests._Hashing._hash

    def watched(self: object, path: pathlib.Path, stat: os.stat_result) -> str:
        hashed.append(path.name)
        return hash_one(self, path, stat)

    monkeypatch.setattr(_file_digests._Hashing, "_hash", watched)
    return hashed


@pytest.mark.parametrize("at", [0, 5000, 1_620_000, (3 << 20) - 1])
def test_any_byte_of_any_weight_changes_the_name(at: int, tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "one")
    before = checkpoint_digest(folder)
    with open(folder / "model-1.safetensors", "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    assert checkpoint_digest(folder) != before


@pytest.mark.parametrize("name", ["config.json", "quantize_config.json", "hf_quant_config.json", "modeling_own.py"])
def test_settings_that_shape_k_and_v_count_and_a_tokenizer_does_not(name: str, tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "one")
    before = checkpoint_digest(folder)
    for idle in (
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "README.md",
        "optimizer.pt",
        "modules.json",
    ):
        (folder / idle).write_text("{}")
    assert checkpoint_digest(folder) == before
    (folder / name).write_text('{"bits": 4}')
    assert checkpoint_digest(folder) != before


def hub_copy(folder: pathlib.Path, source: pathlib.Path) -> pathlib.Path:
    """The same checkpoint as the hub's cache keeps it: links into blobs/, large files named by their SHA-256."""
    snapshot = folder / "snapshots/0123abc"
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    for file in source.iterdir():
        large = file.suffix == ".safetensors"
        blob = hashlib.sha256(file.read_bytes()).hexdigest() if large else "ab" * 20
        (folder / "blobs" / blob).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{blob}")
    return snapshot


def test_a_hub_cache_and_a_copy_have_one_name_and_the_hubs_files_are_not_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "plain")
    name, hashed = checkpoint_digest(folder), counted(monkeypatch)
    snapshot = hub_copy(tmp_path / "models--org--name", folder)
    assert checkpoint_digest(snapshot) == name and hashed == []

    # Saving a fine-tune into the snapshot's folder writes through the links: the blob's name is a lie from then on.
    later = time.time_ns() + 60_000_000_000
    blob = (snapshot / "model-0.safetensors").resolve()
    blob.write_bytes(content(7, 3 << 20))
    os.utime(blob, ns=(later, later))
    assert checkpoint_digest(snapshot) != name and hashed == ["model-0.safetensors"]


def test_files_are_hashed_once_and_again_when_they_changed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "one", shards=3)
    hashed = counted(monkeypatch)
    name = checkpoint_digest(folder)
    assert sorted(hashed) == [f"model-{shard}.safetensors" for shard in range(3)]
    assert checkpoint_digest(folder) == name and len(hashed) == 3
    # Same size, and the time of its content set back: the inode's own time tells.
    file = folder / "model-1.safetensors"
    stat = file.stat()
    with open(file, "r+b") as weights:
        weights.write(b"other")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert checkpoint_digest(folder) != name and hashed[3:] == ["model-1.safetensors"]


def test_a_file_that_is_being_written_is_not_remembered(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_file_digests, "SETTLED_SECONDS", 3600.0)
    hashed = counted(monkeypatch)
    folder = write(tmp_path / "one", shards=1)
    assert checkpoint_digest(folder) == checkpoint_digest(folder) and len(hashed) == 2


def _digest_in_a_process(folder: str, log: str, results: multiprocessing.Queue[str]) -> None:
    hash_one = _file_digests._Hashing._hash

    def watched(self: object, path: pathlib.Path, stat: os.stat_result) -> str:
        with open(log, "a") as file:
            file.write(f"{path.name}\n")
        time.sleep(0.05)
        return hash_one(self, path, stat)

    _file_digests._Hashing._hash = watched  # type: ignore[method-assign]
    results.put(checkpoint_digest(pathlib.Path(folder)))


def test_many_processes_hash_once(tmp_path: pathlib.Path) -> None:
    folder, log = write(tmp_path / "one", shards=4), tmp_path / "log"
    forked = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = forked.Queue()
    processes = [forked.Process(target=_digest_in_a_process, args=(str(folder), str(log), results)) for _ in range(6)]
    for process in processes:
        process.start()
    names = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert names == {checkpoint_digest(folder)}
    assert sorted(log.read_text().split()) == [f"model-{shard}.safetensors" for shard in range(4)]


def test_the_memory_is_bounded_private_and_may_be_garbage(
    tmp_path: pathlib.Path, own_memory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_file_digests, "REMEMBERED_MAX", 5)
    name = checkpoint_digest(write(tmp_path / "one", shards=8, size=1000))
    assert len(json.loads(own_memory.read_text())["digests"]) == 5
    assert own_memory.stat().st_mode & 0o077 == 0 and own_memory.parent.stat().st_mode & 0o077 == 0
    assert [file.name for file in own_memory.parent.iterdir() if file.suffix == ".new"] == []

    # What others could have written is not believed, nor what is no such file.
    lie = json.loads(own_memory.read_text())
    lie["digests"] = dict.fromkeys(lie["digests"], "0" * 64)
    own_memory.write_text(json.dumps(lie))
    own_memory.chmod(0o666)
    assert checkpoint_digest(tmp_path / "one") == name
    for garbage in ("", "[]", '{"format": 1}', '{"format": 1, "host": 3, "digests": [1]}', "\0" * 100):
        own_memory.write_text(garbage)
        assert checkpoint_digest(tmp_path / "one") == name


def test_without_a_place_to_remember_it_works_all_the_same(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "one")
    name = checkpoint_digest(folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file/below"))
    assert checkpoint_digest(folder) == name


def test_one_file_of_several_parts_is_all_its_parts(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    for part in (1, 2):
        (folder / f"m-q4-{part:05}-of-00002.gguf").write_bytes(content(part, 1000))
    (folder / "m-q8.gguf").write_bytes(content(3, 1000))
    four = checkpoint_digest(folder / "m-q4-00001-of-00002.gguf")
    assert four == checkpoint_digest(folder / "m-q4-00001-of-00002.gguf") != checkpoint_digest(folder / "m-q8.gguf")
    (folder / "m-q4-00002-of-00002.gguf").write_bytes(content(9, 1000))
    assert checkpoint_digest(folder / "m-q4-00001-of-00002.gguf") != four


def test_until_the_name_is_known_no_page_moves(tmp_path: pathlib.Path, server: object, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, go = write(tmp_path / "one"), held(monkeypatch)
    name = WeightsName.of("local:", [folder], LOG)
    assert WeightsName.of("local:", [folder], LOG) is name, "the sides of an engine hash once"
    begun = time.monotonic()
    assert not name.wait(0.2) and time.monotonic() - begun < 5
    options = PoolOptions(server.address, name, "", 1000)
    door = Door(options, [GroupPages(0, 16, 1, None, b"")], {0: 4096})
    with pytest.raises(turnkv.Error) as refused:
        door.namespace(0)
    assert refused.value.kind == "unnamed"
    go()
    assert name.wait(60) and name.get() == f"local:{checkpoint_digest(folder)}"
    assert door.namespace(0).lookup(b"\1" * 32) == 0


def test_files_that_change_while_they_are_digested_name_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine loaded what was there before."""
    folder, go = write(tmp_path / "one"), held(monkeypatch)
    name = WeightsName("local:", [folder], LOG)
    time.sleep(0.3)
    (folder / "model-0.safetensors").write_bytes(content(5, 3 << 20))
    go()
    assert not name.wait(60)
    with pytest.raises(turnkv.Error, match="model_id"):
        name.get()


def test_a_drafters_weights_are_part_of_the_name(tmp_path: pathlib.Path) -> None:
    one, draft, other = (write(tmp_path / name, shards=1, size=1000) for name in ("one", "draft", "other"))
    (other / "model-0.safetensors").write_bytes(content(5, 1000))
    names = [WeightsName("", paths, LOG) for paths in ([one], [one, draft], [one, other])]
    assert all(name.wait(60) for name in names) and len({name.get() for name in names}) == 3
    assert names[0].get() == checkpoint.checkpoint_digest(one)
