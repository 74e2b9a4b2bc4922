"""Names of pages: an engine's block hashes as 32 bytes.

Owns: that mapping. Must not know: where the hashes come from, pools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

NAME_BYTES = 32


def name_of(block_hash: bytes) -> bytes:
    """The page's name: the hash itself, or SHA-256 of one that has another length."""
    return block_hash if len(block_hash) == NAME_BYTES else hashlib.sha256(block_hash).digest()


def names_of(hashes: Sequence[bytes], first: int, end: int, hashes_per_block: int = 1) -> list[bytes]:
    """Names of the blocks `first` to `end` (exclusive).

    An engine may hash in finer steps than a group's blocks: hashes are chained, so the last within a block names it.
    """
    if hashes_per_block == 1:
        return [name_of(block_hash) for block_hash in hashes[first:end]]
    return [name_of(hashes[(block + 1) * hashes_per_block - 1]) for block in range(first, end)]
