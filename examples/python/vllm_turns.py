"""Two turns of one session in vLLM, with the engine's own cache forgotten between them.

    python examples/python/vllm_turns.py Qwen/Qwen3-0.6B                                     a private pool is started
    python examples/python/vllm_turns.py Qwen/Qwen3-0.6B unix:/run/turnkv/turnkv.sock       that one is used

Owns: the engine and its prompts. Must not know: pages.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine in this process, so that it can be stepped

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

SESSION = {"turnkv": {"session": "chat-1", "expected_return_ms": 30_000}}


def options(pool: str | None) -> dict[str, Any]:
    """What the connector is told: docs/engines/vllm.md has all options."""
    return {"pool": pool} if pool else {}


def settle(llm: LLM) -> None:
    """Steps until all saves are reported: nobody else steps an engine in this process."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    deadline = time.monotonic() + 20
    while scheduler.has_requests() and time.monotonic() < deadline:
        llm.llm_engine.step()
        time.sleep(0.002)


def main(model: str, pool: str | None) -> None:
    transfer = KVTransferConfig(
        kv_connector="TurnKVConnector",
        kv_connector_module_path="turnkv.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=options(pool),
    )
    llm = LLM(
        model,
        prefix_caching_hash_algo="sha256_cbor",
        kv_transfer_config=transfer,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=4096,
    )
    sampling = SamplingParams(temperature=0, max_tokens=16, detokenize=False, ignore_eos=True, extra_args=SESSION)
    prompt = [100 + number % 300 for number in range(600)]
    for turn in (1, 2):
        (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        print(f"turn {turn}: {output.num_cached_tokens} of {len(prompt)} prompt tokens came from a cache")
        prompt = [*prompt, *output.outputs[0].token_ids, 7, 8, 9]
        settle(llm)
        # Whatever turn 2 finds comes from the pool.
        assert llm.reset_prefix_cache()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
