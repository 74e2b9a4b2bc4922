"""Two turns of one session in SGLang through the direct linker, with the engine's own cache flushed between them.

    python examples/python/sglang_turns.py Qwen/Qwen3-0.6B                                   a private pool is started
    python examples/python/sglang_turns.py Qwen/Qwen3-0.6B unix:/run/turnkv/turnkv.sock     that one is used

Owns: the engine and its prompts. Must not know: pages.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import sglang


def settings(model: str, pool: str | None) -> dict[str, Any]:
    """What SGLang is told: docs/engines/sglang.md has all options."""
    linker = {
        "linker": "Linker",
        "linker_module_path": "turnkv.sglang",
        "linker_extra_config": {"pool": pool} if pool else {},
    }
    return {
        "model_path": model,
        "device": "cpu",
        "page_size": 64,
        "skip_tokenizer_init": True,
        "enable_cache_report": True,
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": json.dumps(linker),
    }


def main(model: str, pool: str | None) -> None:
    engine = sglang.Engine(**settings(model, pool))
    sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    prompt = [100 + number % 300 for number in range(600)]
    for turn in (1, 2):
        answer = engine.generate(input_ids=[prompt], session_id="chat-1", sampling_params=sampling)[0]
        print(f"turn {turn}: {answer['meta_info']['cached_tokens']} of {len(prompt)} prompt tokens came from a cache")
        prompt = [*prompt, *answer["output_ids"], 7, 8, 9]
        # Whatever turn 2 finds comes from the pool.
        engine.flush_cache()
    engine.shutdown()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
