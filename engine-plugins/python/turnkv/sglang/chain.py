"""SGLang's page keys as block hashes, and which page comes before which.

A page can be stored only after the one before it, and SGLang does not always say which that is.
Owns: key -> hash, the memory of parents. Must not know: bytes of pages, the pool, the engine.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

PARENTS_MAX = 131_072
"""Pages whose parent is remembered: 2 M tokens with pages of 16, about 30 MB."""
HASH_BYTES = 32
ROOT = b""
"""The parent of a first page, as the memory has it."""


def block_hash(key: str) -> bytes:
    """The 32 bytes that name the page `key`: SGLang's own SHA-256, or that of any other key."""
    if len(key) == 2 * HASH_BYTES:
        try:
            digest = bytes.fromhex(key)
            if len(digest) == HASH_BYTES:  # fromhex skips blanks
                return digest
        except ValueError:
            pass
    return hashlib.sha256(key.encode()).digest()


def block_hashes(keys: Sequence[str]) -> bytes:
    """The names of all `keys`, packed: 9,000 pages of a long prompt in under a millisecond."""
    if set(map(len, keys)) == {2 * HASH_BYTES}:
        try:
            packed = bytes.fromhex("".join(keys))
            if len(packed) == len(keys) * HASH_BYTES:
                return packed
        except ValueError:
            pass
    return b"".join(map(block_hash, keys))


def pages_in(hashes: bytes) -> int:
    """How many names are packed."""
    return len(hashes) // HASH_BYTES


def cut(hashes: bytes, first: int, end: int) -> bytes:
    """The names of pages `first` up to `end`."""
    return hashes[first * HASH_BYTES : end * HASH_BYTES]


class Chain:
    """Remembers each page's parent, the last PARENTS_MAX of them; any thread may use it."""

    def __init__(self, parents_max: int = PARENTS_MAX) -> None:
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()
        self._parents_max = parents_max
        self._lock = threading.Lock()

    def learn(self, hashes: bytes, parent: bytes | None = None) -> None:
        """`hashes` follow one another; `parent` is the page before the first, ROOT for none, None if not known."""
        with self._lock:
            for page in range(pages_in(hashes)):
                hash = cut(hashes, page, page + 1)
                if parent is not None:
                    self._parents[hash] = parent
                    self._parents.move_to_end(hash)
                parent = hash
            while len(self._parents) > self._parents_max:
                self._parents.popitem(last=False)

    def parent_of(self, hash: bytes) -> bytes | None:
        """The page before `hash`, ROOT for none; None: not known."""
        with self._lock:
            return self._parents.get(hash)

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            self._parents.clear()
