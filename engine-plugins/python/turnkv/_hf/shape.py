"""Which layers of a model share a span, what their pages are made of, and their namespace.

Owns: reading a model's configuration. Must not know: the pool, memory.
"""

from __future__ import annotations

import hashlib
import mmap
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .common import DTYPES, Unsupported
from .group import GroupShape

PIECE_BYTES = 32 << 10
"""K of one head in one page should have so many bytes: larger pieces need fewer mappings, smaller ones waste less."""
PAGE_TOKENS_USUAL_MAX = 128
"""Pages are not made larger than this for the sake of `PIECE_BYTES`."""


def group_shapes(model: torch.nn.Module, page_tokens: int | None, sink: int, window: int | None) -> list[GroupShape]:
    """The groups of a model's layers, the one that knows how long a session is first."""
    layers = DynamicCache(config=model.config).layers
    config = model.config.get_text_config(decoder=True)
    _check(model, layers, config)
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = next(model.parameters()).dtype
    size = _page_tokens(page_tokens, kv_heads, head_dim * dtype.itemsize)
    if (window is None) != (sink == 0) and window is None:
        raise ValueError("sink goes with window: what is kept are the first `sink` and the last `window` tokens")
    if window is not None and (window < 1 or sink < 0):
        raise ValueError("window is at least 1 token, sink at least 0")
    by_window: dict[int | None, list[int]] = {}
    for at, layer in enumerate(layers):
        by_window.setdefault(getattr(layer, "sliding_window", None), []).append(at)
    if window is not None and set(by_window) != {None}:
        raise Unsupported("sink and window trim models with full attention only: this one has sliding layers of its own")
    shapes = []
    for own, members in sorted(by_window.items(), key=lambda item: item[0] is not None):
        kept = window if own is None else own
        shapes.append(
            GroupShape(
                tuple(members), kv_heads, head_dim, size, dtype, window=kept, exact=own is not None,
                sink_pages=-(-sink // size) if own is None and window is not None else 0,
            )
        )
    return shapes


def specification(shape: GroupShape, model: str, tenant: str, salt: bytes) -> dict[str, Any]:
    """The namespace of a group's pages: also which layers they are of, and what was forgotten when they were made."""
    kept = ("layers", shape.layers, "window", shape.window, "sinks", shape.sink_pages, "exact", shape.exact)
    digest = hashlib.sha256(repr(kept).encode() + b"\0" + salt).digest()
    return {
        "model": model, "dtype": DTYPES[shape.dtype], "layers": len(shape.layers), "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "page_tokens": shape.page_tokens, "tenant": tenant, "salt": digest,
        "layout": "layer_kv_head_token" if shape.by_head else "layer_kv_token_head",
    }


def _check(model: torch.nn.Module, layers: list[Any], config: Any) -> None:
    if getattr(model.config, "is_encoder_decoder", False):
        raise Unsupported("encoder-decoder models are not supported: their cache depends on more than the token prefix")
    others = sorted({type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)})
    if others:
        raise Unsupported(f"only full and sliding-window attention is supported, this model's cache has {', '.join(others)}")
    if not layers or len(layers) != config.num_hidden_layers:
        raise Unsupported(f"this model shares or lacks cache layers: {len(layers)} for {config.num_hidden_layers}")
    if getattr(config, "kv_lora_rank", None):
        raise Unsupported("multi-head latent attention is not supported: its K and V have different sizes")
    if next(model.parameters()).dtype not in DTYPES:
        raise Unsupported(
            f"K and V of {next(model.parameters()).dtype} are not supported: load the model as bfloat16, float16 or float32"
        )


def _page_tokens(asked: int | None, kv_heads: int, head_bytes: int) -> int:
    """Tokens of a page: K of one layer in it must be whole memory pages, or it could not be mapped by itself."""
    token_bytes = kv_heads * head_bytes
    if asked is not None:
        if not isinstance(asked, int) or not 1 <= asked <= 4096:
            raise ValueError(f"page_tokens must be 1 to 4096, not {asked!r}")
        if asked * token_bytes % mmap.PAGESIZE:
            fit = next((n for n in range(asked, 4097) if n * token_bytes % mmap.PAGESIZE == 0), 4096)
            raise ValueError(
                f"{asked} tokens of {token_bytes} bytes (K of one layer) are not whole memory pages of {mmap.PAGESIZE}: "
                f"page_tokens={fit} are; or use legacy=True"
            )
        return asked
    size = 16
    while size < PAGE_TOKENS_USUAL_MAX and size * head_bytes < PIECE_BYTES:
        size *= 2
    while size < 4096 and size * token_bytes % mmap.PAGESIZE:
        size *= 2
    if size * token_bytes % mmap.PAGESIZE:
        raise Unsupported(f"K and V of {token_bytes} bytes a token do not make whole memory pages: use legacy=True")
    return size
