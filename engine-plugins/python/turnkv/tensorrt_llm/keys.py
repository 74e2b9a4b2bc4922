"""Names of a request's pages: our own chain over its tokens, since TensorRT-LLM's block hashes are not for sharing.

Owns: what of a request besides its tokens goes into the names, which tokens can be named at all. Must not know: pools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

import turnkv
from turnkv.connector.names import NAME_BYTES

from .identity import Checkpoint

_FOREIGN = (
    "multimodal_hashes",
    "multimodal_positions",
    "multimodal_lengths",
    "multimodal_embedding",
    "py_multimodal_data",
    "prompt_embedding_table",
    "mrope_rotary_cos_sin",
    "mrope_position_deltas",
    "encoder_tokens",
    "position_ids",
)
"""Inputs of a request that shape its K and V without being in its tokens."""


def has_foreign_input(request: Any) -> bool:
    """Whether something else than tokens goes into the request: its pages are neither kept nor looked for."""
    return any(_is_given(getattr(request, name, None)) for name in _FOREIGN)


def root_of(request: Any, adapter: str | None) -> bytes | None:
    """What the chain of names begins with: a digest of salt and of the adapter's identity; None where there are none."""
    salts = {name: getattr(request, name, None) for name in ("cache_salt_id", "cache_salt")}
    given = {name: value for name, value in {**salts, "adapter": adapter}.items() if value is not None}
    if not given:
        return None
    return hashlib.sha256(b"turnkv-trtllm-root-2" + json.dumps(given, sort_keys=True, default=str).encode()).digest()


class Naming:
    """How the pages of one model are named."""

    def __init__(self, block_tokens: int, known: Checkpoint) -> None:
        self.block_tokens = block_tokens
        self._placeholders = np.array(sorted(known.placeholders), dtype=np.int64)
        self._vocabulary = known.vocabulary

    def names(self, tokens: Sequence[int], parent: bytes | None) -> list[bytes]:
        """Names of the whole pages of these tokens, after the page `parent`, up to one with a token that is no text."""
        values = np.asarray(tokens, dtype=np.int64)
        packed = turnkv.chain_hashes(values[: self._textual(values)].astype("<u4").tobytes(), self.block_tokens, parent)
        return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]

    def _textual(self, values: np.ndarray) -> int:
        """Leading tokens that mean the same wherever they stand."""
        foreign = values < 0
        if self._vocabulary is not None:
            foreign |= values >= self._vocabulary
        if self._placeholders.size:
            foreign |= np.isin(values, self._placeholders)
        return int(foreign.argmax()) if foreign.any() else len(values)


def _is_given(value: Any) -> bool:
    if value is None:
        return False
    try:
        return len(value) > 0
    except TypeError:
        return True
