"""The programs of examples/python do what they say, and the snippet of docs/engines/transformers.md works as pasted."""

from __future__ import annotations

import os
import pathlib
import py_compile
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from conftest import ROOT, Server

import turnkv

EXAMPLES = ROOT / "examples" / "python"
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLUGINS = str(pathlib.Path(turnkv.__file__).parents[1])


def ran(*arguments: str, home: pathlib.Path) -> str:
    """What a program of this Python says, with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG")}
    environment = {**kept, "HOME": str(home), "PYTHONPATH": PLUGINS, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_compile(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    py_compile.compile(str(path), cfile=str(tmp_path / "compiled"), doraise=True)


def test_pool(server: Server, tmp_path: pathlib.Path) -> None:
    said = ran(str(EXAMPLES / "pool.py"), server.address, home=tmp_path)
    assert "stored 3, present 0, declined 0" in said
    assert "reloaded 3 of 4 pages, then a miss: absent" in said


def test_transformers_turns(server: Server, tmp_path: pathlib.Path) -> None:
    said = ran(str(EXAMPLES / "transformers_turns.py"), server.address, home=tmp_path)
    assert re.search(r"turn 1: 0 of 300 .*turn 2: 339 of 360 .*turn 3: 399 of 420 ", said, re.DOTALL), said


def test_the_snippet_of_the_page_works_as_pasted(make_server: Callable[..., Server], tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs" / "engines" / "transformers.md").read_text()
    (snippet,) = SNIPPET.findall(page)
    # The one thing that is another here: the pool, as its own comment says.
    named = snippet.replace('session="chat-1")  ', f'session="chat-1", pool="{make_server().address}")  ')
    assert named != snippet
    said = ran("-c", named, home=tmp_path)
    assert said.startswith("turn 0: 0 of 300 ") and "turn 2: 399 of 420" in said, said
