"""Digests of files that take as long as a test wants.

Owns: holding the hashing up. Must not know: what the files are.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable

import pytest

from turnkv import _file_digests


def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Hashing waits until the returned function is called."""
    go, hash_one = threading.Event(), _file_digests._Hashing._hash

    def waiting(self: object, path: pathlib.Path, stat: os.stat_result) -> str:
        assert go.wait(60)
        return hash_one(self, path, stat)

    monkeypatch.setattr(_file_digests._Hashing, "_hash", waiting)
    return go.set
