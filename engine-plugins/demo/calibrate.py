"""How large a model this machine can serve in the demo's time. Owns: sizes, the dtype, the estimate and its limit.

CPUs differ: without AVX-512 bf16 products are emulated, five times slower than fp32. So both are timed, for a second, on two
layers of the model, and the largest model whose whole run should fit the time is taken. Must not know: the pool.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass

import torch
import workload
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 8192
SECONDS_WANTED = 90
"""What the estimate of a run may be: the machine may be half as fast later on."""
SECONDS_MAX = 150
"""When this is near, turns are no longer prefilled a second time just to be timed."""
PROBE_LAYERS = 2
PROBE_TOKENS = 256
PROBE_ROUNDS = 3


@dataclass(frozen=True)
class Size:
    """A model's dimensions. Heads and their length are the same in all: a layer's KV is what it is in every size."""

    layers: int
    hidden: int

    def config(self, layers: int | None = None) -> Qwen3Config:
        """As transformers wants it, with fewer layers if asked for."""
        return Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            intermediate_size=3 * self.hidden,
            num_hidden_layers=layers or self.layers,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=64,
            max_position_embeddings=16384,
            bos_token_id=None,
            eos_token_id=None,
        )


SIZES = (Size(12, 768), Size(8, 768), Size(6, 768), Size(4, 384), Size(2, 192))
"""Largest first; the last one is taken however long it takes."""
DTYPES = (torch.bfloat16, torch.float32)
"""bf16 first: it is what engines keep, and of two that fit equally well it is taken."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one layer of one size: for a prompt's token, and for a token sampled alone."""

    prefill: float
    decode: float

    def seconds(self, layers: int, work: workload.Work, *, timed: bool) -> float:
        """Of a whole run; `timed` with every reused prefix prefilled again to be timed."""
        prompt = 2 * work.computed + (work.reused if timed else 0)
        return layers * (prompt * self.prefill + 2 * work.sampled * self.decode)


@dataclass(frozen=True)
class Choice:
    """What the demo runs."""

    size: Size
    dtype: torch.dtype
    estimate: float
    """Seconds of computing that the probe promises for it."""

    @property
    def name(self) -> str:
        """The dtype as engines call it."""
        return {torch.bfloat16: "bf16", torch.float32: "fp32"}[self.dtype]


def choose(
    work: workload.Work, seconds: float = SECONDS_WANTED, *, dtypes: tuple[torch.dtype, ...] = DTYPES, timed: bool = True
) -> Choice:
    """The largest size, in that of the dtypes that this CPU is faster with, whose estimate fits.

    `timed`: every reused prefix is prefilled once more, to time that.
    """
    for size in SIZES:
        choices = [Choice(size, dtype, probe(size, dtype).seconds(size.layers, work, timed=timed)) for dtype in dtypes]
        best = min(choices, key=lambda choice: choice.estimate)
        if best.estimate <= seconds:
            return best
    return best


def probe(size: Size, dtype: torch.dtype) -> Speed:
    """Times a prompt and some sampled tokens on a few layers; the median of a few rounds, after one that warms."""
    model = Qwen3ForCausalLM(size.config(PROBE_LAYERS)).to(dtype).eval()
    prompt = torch.randint(0, VOCABULARY, (1, PROBE_TOKENS))
    prefills, decodes = [], []
    for _ in range(1 + PROBE_ROUNDS):
        cache = DynamicCache(config=model.config)
        marks = [time.perf_counter()]
        for ids in (prompt, prompt[:, :1], prompt[:, :1], prompt[:, :1]):
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            marks.append(time.perf_counter())
        steps = [after - before for before, after in itertools.pairwise(marks)]
        prefills.append(steps[0])
        decodes.append(statistics.median(steps[1:]))
    per_layer = statistics.median(prefills[1:]) / PROBE_LAYERS, statistics.median(decodes[1:]) / PROBE_LAYERS
    return Speed(per_layer[0] / PROBE_TOKENS, per_layer[1])
