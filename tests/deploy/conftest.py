"""What the tests of deploy/ share: where it is, and the server that is asked about configurations.

.tools/deploy/bin/python -m pytest tests/deploy          `make test-deploy` gets what they need; TURNKV_SERVER names the binary
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def server_binary() -> pathlib.Path:
    """The newest of what cargo built, unless TURNKV_SERVER names one."""
    named = os.environ.get("TURNKV_SERVER")
    if named:
        return pathlib.Path(named)
    built = [path for path in (ROOT / "target/release/turnkv", ROOT / "target/debug/turnkv") if path.is_file()]
    if not built:
        pytest.exit("no turnkv binary: run `cargo build -p turnkv` first, or set TURNKV_SERVER", returncode=2)
    return max(built, key=lambda path: path.stat().st_mtime)


def in_force(text: str, folder: pathlib.Path) -> str:
    """What the server makes of a configuration; a setting that it does not know fails the test by name."""
    path = folder / "asked.toml"
    path.write_text(text)
    return run([str(server_binary()), "config", "--config", str(path)])


def help_of(command: str) -> str:
    """What `turnkv COMMAND --help` says."""
    return run([str(server_binary()), command, "--help"])


def run(command: list[str], **environment: str) -> str:
    """What a command prints that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
