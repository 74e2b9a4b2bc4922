"""Writes a Qwen3-architecture model with random, properly scaled weights (about 50 M parameters, no tokenizer) for vLLM.

    python make_model.py FOLDER

Random and not vLLM's "dummy" weights: those give the same tokens whatever the KV holds.
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, DIM, WORDS = 12, 512, 1536, 8, 4, 64, 4096


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "vocab_size": WORDS,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    random = torch.Generator().manual_seed(0)

    def weight(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * scale / columns**0.5

    tensors = {
        "model.embed_tokens.weight": torch.randn(WORDS, HIDDEN, generator=random),
        "lm_head.weight": weight(WORDS, HIDDEN, 3.0),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "self_attn.q_proj.weight": weight(HEADS * DIM, HIDDEN),
            at + "self_attn.k_proj.weight": weight(KV_HEADS * DIM, HIDDEN),
            at + "self_attn.v_proj.weight": weight(KV_HEADS * DIM, HIDDEN, 4.0),
            at + "self_attn.o_proj.weight": weight(HIDDEN, HEADS * DIM, 4.0),
            at + "self_attn.q_norm.weight": torch.full((DIM,), 2.0),
            at + "self_attn.k_norm.weight": torch.full((DIM,), 2.0),
            at + "mlp.gate_proj.weight": weight(INNER, HIDDEN),
            at + "mlp.up_proj.weight": weight(INNER, HIDDEN),
            at + "mlp.down_proj.weight": weight(HIDDEN, INNER),
            at + "input_layernorm.weight": torch.ones(HIDDEN),
            at + "post_attention_layernorm.weight": torch.ones(HIDDEN),
        }
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
