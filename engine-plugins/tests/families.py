"""Small models of many families, with random weights. Owns: their shapes. Must not know: caches, the pool."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as hf

COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = {**COMMON, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts_per_tok": 2}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MLA = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
MOE = {"n_routed_experts": 4, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
GEMMA_4 = {
    **GROUPED,
    "num_hidden_layers": 4,
    "sliding_window": 24,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "layer_types": [*MIXED[:1], *MIXED[:1], *MIXED[:1], "full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 512,
    "num_experts": None,
    "enable_moe_block": False,
}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**COMMON, num_key_value_heads=2)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GROUPED, sliding_window=24, layer_types=MIXED)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED, sliding_window=24, layer_types=MIXED)),
    "gemma4": lambda: hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**GEMMA_4, num_kv_shared_layers=0)),
    "gemma4-k-is-v": lambda: hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**GEMMA_4, attention_k_eq_v=True)),
    "gemma4-shared": lambda: hf.Gemma4ForCausalLM(
        hf.Gemma4TextConfig(
            **{**GEMMA_4, "num_hidden_layers": 8, "layer_types": GEMMA_4["layer_types"] * 2, "hidden_size_per_layer_input": 16},
            num_kv_shared_layers=4,
        )
    ),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=24)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, **EXPERTS, num_local_experts=4)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**GROUPED, **EXPERTS, num_local_experts=4, sliding_window=24, layer_types=MIXED)
    ),
    "deepseek-mla": lambda: hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(**COMMON, **EXPERTS, **MLA, **MOE, num_key_value_heads=4)
    ),
    "mimo": lambda: hf.MiMoV2FlashForCausalLM(
        hf.MiMoV2FlashConfig(**{**GROUPED, **EXPERTS}, v_head_dim=8, n_routed_experts=4, moe_intermediate_size=32)
    ),
    "falcon-mqa": lambda: hf.FalconForCausalLM(_falcon(multi_query=True, new_decoder_architecture=False)),
    "falcon-mha": lambda: hf.FalconForCausalLM(_falcon(multi_query=False, new_decoder_architecture=False)),
    "falcon-new": lambda: hf.FalconForCausalLM(_falcon(num_kv_heads=2, new_decoder_architecture=True)),
    "bigcode-mqa": lambda: hf.GPTBigCodeForCausalLM(
        hf.GPTBigCodeConfig(
            vocab_size=512, n_positions=1024, n_embd=64, n_layer=3, n_head=4, bos_token_id=None, eos_token_id=None, **NO_DROPOUT
        )
    ),
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**COMMON)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**COMMON, num_key_value_heads=2)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**COMMON)),
}


def _falcon(**settings: object) -> hf.FalconConfig:
    sizes = {key: COMMON[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    return hf.FalconConfig(**sizes, alibi=False, bias=False, bos_token_id=None, eos_token_id=None, **settings)


def family(name: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A model of a family, the same each time."""
    torch.manual_seed(0)
    return MODELS[name]().to(dtype).eval()
