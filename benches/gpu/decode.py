"""One decode step of the model as one launch: what the device takes for it, without Python between its kernels.

Owns: the step's arithmetic over a cache of fixed size, its CUDA graph. Must not know: what runs beside it.
An eager step of a large model is bound by Python and launches, which would hide what an offload costs the device.
"""

from __future__ import annotations

import torch
from stage import Stage
from torch.nn.functional import scaled_dot_product_attention


class Decode:
    """Steps of one sequence with `tokens` tokens of context; on a CPU they are computed one call after another."""

    def __init__(self, stage: Stage, tokens: int) -> None:
        self._stage, self._model = stage, stage.model.model
        config = stage.model.config
        self._heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        shape = (1, config.num_key_value_heads, tokens, config.head_dim)
        self._kv = [
            tuple(torch.randn(shape, device=stage.place, dtype=torch.bfloat16) for _ in range(2)) for _ in self._model.layers
        ]
        self._hidden = torch.randn((1, 1, config.hidden_size), device=stage.place, dtype=torch.bfloat16)
        self._graph = None
        if stage.place.type == "cuda":
            self._capture()

    def step(self) -> None:
        """Begins a step."""
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def seconds(self, count: int) -> list[float]:
        """Of each of so many steps, after one that is not counted."""
        return [self._stage.timed(self.step)[0] for _ in range(count + 1)][1:]

    def _capture(self) -> None:
        # Outside of the capture first, on a stream of its own, as torch asks: libraries set themselves up there.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of this process go on using the device while it is captured.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._compute()

    def _compute(self) -> torch.Tensor:
        """What a decode step reads and multiplies: all weights and the whole cache. Positions are left out: they cost nothing."""
        heads, kv_heads, size = self._heads
        hidden = self._hidden
        for layer, (keys, values) in zip(self._model.layers, self._kv, strict=True):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            queries = attention.q_norm(attention.q_proj(normed).view(1, 1, heads, size)).transpose(1, 2)
            attention.k_norm(attention.k_proj(normed).view(1, 1, kv_heads, size))
            attention.v_proj(normed)
            seen = scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
            hidden = hidden + attention.o_proj(seen.transpose(1, 2).reshape(1, 1, heads * size))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self._stage.model.lm_head(self._model.norm(hidden))
