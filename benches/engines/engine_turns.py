"""One CPU vLLM engine of `side_by_side.py`: plays a turn of every session and writes what it saw as JSON.

    python engine_turns.py MODEL SPEC OUT        SPEC: JSON {"transfer", "turn", "sessions": [[token, ...], ...]}

Owns: the engine's settings, timing a first token. Must not know: what the connector is.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

REPLY_TOKENS = 48
SETTLE_SECONDS = 3.0
"""For connectors that store after the reply."""


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    model, spec, out = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text()), sys.argv[3]
    transfer = KVTransferConfig(**spec["transfer"]) if spec["transfer"] else None
    engine = LLM(
        model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=8192,
        block_size=32,
        seed=0,
        enable_prefix_caching=True,
        prefix_caching_hash_algo="sha256_cbor",
        kv_transfer_config=transfer,
    )
    settings = {"temperature": 0, "detokenize": False, "ignore_eos": True}
    first, reply = SamplingParams(max_tokens=1, **settings), SamplingParams(max_tokens=REPLY_TOKENS, **settings)
    engine.generate([{"prompt_token_ids": [7] * 100}], reply, use_tqdm=False)  # warm
    seen = []
    for tokens in spec["sessions"]:
        prompt = [{"prompt_token_ids": tokens}]
        began = time.perf_counter()
        done = engine.generate(prompt, first, use_tqdm=False)[0]
        seconds = time.perf_counter() - began
        answer = engine.generate(prompt, reply, use_tqdm=False)[0].outputs[0].token_ids
        seen.append({"ttft_ms": seconds * 1e3, "cached": done.num_cached_tokens, "tokens": list(answer)})
    time.sleep(SETTLE_SECONDS)
    if spec["turn"] == "first":  # the second turn at once, from the pool's memory
        for session, tokens in zip(seen, spec["sessions"], strict=True):
            engine.reset_prefix_cache()
            grown = tokens + session["tokens"] + [11] * 64
            began = time.perf_counter()
            done = engine.generate([{"prompt_token_ids": grown}], first, use_tqdm=False)[0]
            session["again_ms"], session["again_cached"] = (time.perf_counter() - began) * 1e3, done.num_cached_tokens
    pathlib.Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
