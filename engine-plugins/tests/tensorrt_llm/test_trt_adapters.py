"""LoRA adapters under TensorRT-LLM's call sequence: a task id is what a server calls an adapter, not which weights it has.

Owns: what of an adapter names pages, and what happens where nothing does.
"""

from __future__ import annotations

import logging
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from engines import make_engine  # noqa: F401  (a fixture; it also puts the stand-in in place)
from hashing import held
from player import Engine, Request, Step
from scripts import prompt

MakeEngine = Callable[..., Engine]


def matched(engine: Engine, request_id: int, words: list[int], **settings: Any) -> int:
    """Tokens that came from the pool; that they are right, the player checks."""
    request = Request(request_id, words, 2, lora_task_id=5, **settings)
    return engine.play({"a": request}, [Step(arrive=("a",))])["a"].matched


def adapter(folder: pathlib.Path, weights: str) -> str:
    """An adapter's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(weights)
    return str(folder)


def test_an_id_alone_moves_no_pages(server: Any, make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    """Two servers whose adapter 5 is another one; the log says once what names it."""
    words = prompt(21, 300)
    for weights in ("one", "other"):
        engine = make_engine(server.address, adapters={5: weights})
        with caplog.at_level(logging.WARNING, "turnkv.tensorrt_llm"):
            caplog.clear()
            assert [matched(engine, number, words) for number in (1, 2)] == [0, 0]
        assert engine.scheduler.counts["stored_pages"] == 0
        assert [record.message.count("TURNKV_LORA_NAMES=5=NAME") for record in caplog.records] == [1]


def test_files_name_an_adapter(server: Any, make_engine: MakeEngine, tmp_path: pathlib.Path) -> None:
    words = prompt(21, 310)
    one, other = adapter(tmp_path / "one", "weights of one"), adapter(tmp_path / "other", "weights of another")
    copy = adapter(tmp_path / "copy", "weights of one")
    first = make_engine(server.address, adapters={5: "one"})
    assert [matched(first, number, words, py_lora_path=one) for number in (1, 2)] == [0, 20]
    assert matched(make_engine(server.address, adapters={5: "other"}), 1, words, py_lora_path=other) == 0
    assert matched(make_engine(server.address, adapters={5: "one"}), 1, words, py_lora_path=copy) == 20

    # Files that changed under a running engine: nobody knows which of both it runs with.
    adapter(tmp_path / "one", "weights of one, trained on")
    stored = first.scheduler.counts["stored_pages"]
    assert matched(first, 3, words, py_lora_path=one) == matched(first, 4, words, py_lora_path=one) == 0
    assert matched(first, 5, words, py_lora_path=other) == 0
    assert first.scheduler.counts["stored_pages"] == stored
    assert matched(make_engine(server.address, adapters={5: "trained"}), 1, words, py_lora_path=one) == 0


def replaced(folder: pathlib.Path, weights: str) -> None:
    """Other weights come into the place of an adapter's at once."""
    (folder / "fresh").write_text(weights)
    (folder / "fresh").rename(folder / "adapter_model.safetensors")


def stored_by(engine: Engine, numbers: range, words: list[int], path: str) -> int:
    """Pages that requests stored; none finds anything."""
    before = engine.scheduler.counts["stored_pages"]
    assert all(matched(engine, number, words, py_lora_path=path) == 0 for number in numbers)
    return engine.scheduler.counts["stored_pages"] - before


def test_files_replaced_while_they_are_digested_name_nothing_for_good(
    server: Any,
    make_engine: MakeEngine,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine has read the old weights: the new ones' name would give its pages to engines that read those."""
    words, path = prompt(21, 330), adapter(tmp_path / "one", "weights of one, slow to digest")
    engine, go = make_engine(server.address, adapters={5: "one"}), held(monkeypatch)
    with caplog.at_level(logging.WARNING, "turnkv.tensorrt_llm"):
        assert stored_by(engine, range(1, 2), words, path) == 0
        assert not caplog.records, "a digest that is on its way is no reason to name weights"
        replaced(tmp_path / "one", "weights of two, come since")
        go()
        fresh = make_engine(server.address, adapters={5: "two"})
        deadline = time.monotonic() + 60
        number = 1
        while stored_by(fresh, range(number, number + 1), words, path) == 0:
            assert time.monotonic() < deadline, "the new weights are never named"
            number += 1
        assert stored_by(engine, range(2, 6), words, path) == 0
    assert engine.scheduler.counts["missed_adapter"] == 5
    assert len([record for record in caplog.records if "adapter 5" in record.message]) == 1


def test_files_that_came_after_the_engine_name_nothing(server: Any, make_engine: MakeEngine, tmp_path: pathlib.Path) -> None:
    """The executor may have read what lay there before its connector heard of the request."""
    words, folder = prompt(21, 340), tmp_path / "one"
    path = adapter(folder, "weights of one")
    (tmp_path / "two").mkdir()
    other = adapter(tmp_path / "two", "weights of two")
    (tmp_path / "link").symlink_to(folder)
    engines = [make_engine(server.address, adapters={5: "one"}) for _ in range(3)]
    time.sleep(0.05)  # a file system's clock may lag by a tick
    replaced(folder, "weights of one, anew")
    assert stored_by(engines[0], range(1, 3), words, path) == 0
    (tmp_path / "two").rename(tmp_path / "three")
    assert stored_by(engines[1], range(1, 3), words, str(tmp_path / "three")) == 0, other
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "three")
    assert stored_by(engines[2], range(1, 3), words, str(tmp_path / "link")) == 0
    assert stored_by(make_engine(server.address, adapters={5: "one"}), range(1, 2), words, path) > 0


def test_an_operator_names_adapters(server: Any, make_engine: MakeEngine) -> None:
    words = prompt(21, 320)
    for name, weights, expected in (("sql@1", "one", 0), ("sql@2", "other", 0), ("sql@1", "one", 20)):
        engine = make_engine(server.address, {"lora_names": f"4=a, 5={name}"}, adapters={5: weights})
        assert matched(engine, 1, words) == expected


@pytest.mark.parametrize("text", ["5", "5=", "=a", "five=a", "5=a,5=b", "5=a;7=b", "5=a b", "5=a\n7", "5=\u00e4"])
def test_a_wrong_list_of_names_stops_the_start(server: Any, make_engine: MakeEngine, text: str) -> None:
    with pytest.raises(ValueError, match="TURNKV_LORA_NAMES must be like"):
        make_engine(server.address, {"lora_names": text})
