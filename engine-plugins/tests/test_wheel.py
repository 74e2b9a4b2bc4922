"""The wheel alone, in an environment of its own: a private pool starts, and `turnkv` is a command.

Owns: installing. Must not know: how the wheel is built (`make python`; without one nothing is tested here).
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator

import pytest
from conftest import ROOT

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
WHEEL = next(iter(sorted((TARGET / "wheels").glob("turnkv-*.whl"))), None)
WHEEL_BYTES_MAX = 20 << 20

if WHEEL is None:
    pytest.skip("no wheel in target/wheels: `make python` builds it", allow_module_level=True)

SNIPPET = """
import turnkv
pool = turnkv.Pool(connect_ms=20000)
pages = pool.open_namespace("wheel", dtype="u8", layout="opaque", opaque_shard_bytes=4096)
hashes = turnkv.chain_hashes(bytes(128), 16)
print(pages.offload(hashes, [bytes(4096)] * 2).stored, pages.lookup(hashes))
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[pathlib.Path]:
    """A fresh environment with the wheel and nothing else."""
    with tempfile.TemporaryDirectory(prefix="tkv-") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = f"{folder}/bin/python"
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*command, "--disable-pip-version-check", str(WHEEL)], check=True)
        yield pathlib.Path(folder)


def environment(home: pathlib.Path) -> dict[str, str]:
    """Without anything that could lead to another server."""
    return {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PATH": "/usr/bin:/bin"}


def test_a_private_pool_needs_nothing_but_the_wheel(installed: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tkv-") as home:
        said = subprocess.run(
            [installed / "bin/python", "-c", SNIPPET],
            env=environment(pathlib.Path(home)),
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert said.stdout.split() == ["2", "2"], said.stderr


def test_the_server_is_a_command(installed: pathlib.Path) -> None:
    said = subprocess.run(
        [installed / "bin/turnkv", "--version"],
        env=environment(installed),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0 and said.stdout.startswith("turnkv "), said.stderr


def test_the_server_is_stripped_and_the_wheel_small() -> None:
    wheel = zipfile.ZipFile(WHEEL)
    server = wheel.getinfo("turnkv/_bin/turnkv")
    assert server.external_attr >> 16 & 0o111 == 0o111 and server.file_size < 2 * WHEEL_BYTES_MAX
    assert WHEEL.stat().st_size < WHEEL_BYTES_MAX
