"""What must agree for pages of SGLang to be exchangeable: the namespace of a pool, from the engine's own settings.

SGLang's page hash covers tokens, LoRA adapter and cache salt, nothing else; all the rest is here.
Owns: which settings count, which shard a rank has. Must not know: pools, page memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnkv.checkpoint import WeightsName, checkpoint_folder, weights_path

logger = logging.getLogger("turnkv.sglang")

SETTINGS = (
    "quantization",
    "kv_cache_dtype",
    "dtype",
    "json_model_override_args",
    "model_impl",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "mamba_ssm_dtype",
    "rl_on_policy_target",
)
"""Settings of the server under which the same tokens give other K and V. One that a version lacks counts as None."""
FORMAT = 1
"""Of this file's own choices; a new one makes old pages unreachable."""


@dataclass(frozen=True)
class Rank:
    """This worker's place: its shard of every page, and which pipeline stage."""

    shard: int = 0
    shards: int = 1
    stage: int = 0
    stages: int = 1
    writes: bool = True
    """False: another rank stores the same bytes."""


def rank_of(tp: tuple[int, int], pp: tuple[int, int], cp: tuple[int, int], replicated: bool) -> Rank:
    """A rank's shard from its (rank, size) pairs. MLA pages are the same on every tensor rank: rank 0 stores them.

    Under context parallelism each rank has its own slice of a page, replicated or not.
    """
    if replicated:
        return Rank(cp[0], cp[1], pp[0], pp[1], writes=tp[0] == 0)
    return Rank(tp[0] * cp[1] + cp[0], tp[1] * cp[1], pp[0], pp[1])


def namespace(
    rank: Rank,
    *,
    model: str | WeightsName,
    settings: dict[str, Any],
    tenant: str,
    pool_name: str,
    layout: str,
    dtype: str,
    page_tokens: int,
    lengths: list[int],
) -> dict[str, Any]:
    """The arguments of `Pool.open_namespace` for one of SGLang's memory pools."""
    facts = {
        "format": FORMAT,
        "engine": "sglang",
        "settings": settings,
        "pool": pool_name,
        "layout": layout,
        "dtype": dtype,
        "stage": [rank.stage, rank.stages],
        "bytes": sum(lengths),
    }
    salt = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()
    return {
        "model": model,
        "dtype": "u8",
        "page_tokens": page_tokens,
        "layout": "opaque",
        "opaque_shard_bytes": sum(lengths),
        "tp_size": rank.shards,
        "tenant": tenant,
        "salt": salt,
    }


def engine_settings() -> dict[str, Any]:
    """SETTINGS as the running engine has them."""
    from sglang.srt.runtime_context import get_server_args

    args = get_server_args()
    settings = {name: getattr(args, name, None) for name in SETTINGS}
    # Who asks for the same bits each time shares with its like only. Named where it is on: without it names stay as they were.
    if getattr(args, "enable_deterministic_inference", False):
        settings["enable_deterministic_inference"] = True
    if getattr(args, "load_format", None) == "dummy":  # the seed makes the weights, whatever files there are
        settings["random_seed"] = getattr(args, "random_seed", None)
    return settings


def engine_weights() -> str | WeightsName:
    """Names the running engine's weights, its drafter's and those of the adapters that it started with among them."""
    from sglang.srt.runtime_context import get_server_args

    args = get_server_args()
    draft = getattr(args, "speculative_draft_model_path", None)
    drafts = [(str(draft), getattr(args, "speculative_draft_model_revision", None))] if draft else []
    # SGLang's page hash has an adapter's name and path, not what lies there.
    adapters = [(str(path), None) for path in sorted(map(_adapter_path, getattr(args, "lora_paths", None) or ()))]
    return weights_name(str(args.model_path), getattr(args, "revision", None), [*drafts, *adapters])


def weights_name(path: str, revision: str | None, others: Sequence[tuple[str, str | None]] = ()) -> str | WeightsName:
    """The model's kind and a digest of its files, wherever they lie; one on no disk here has only its name.

    `others`: (path, revision) of what else shapes K and V.
    """
    folder, paths = checkpoint_folder(path, revision), weights_path(path, revision)
    if folder is None or paths is None:
        logger.warning(
            "turnkv: no files of %s found to fingerprint: its name and revision alone name the weights; "
            "set model_id when they change",
            path,
        )
        return f"named-{hashlib.sha256(f'{path}@{revision}'.encode()).hexdigest()}"
    try:
        kind = str(json.loads((folder / "config.json").read_text())["model_type"])[:64]
    except (OSError, ValueError, KeyError, TypeError):
        kind = "model"
    found = [weights_path(*other) for other in others]
    return WeightsName.of(f"{kind}-", [paths, *(other for other in found if other is not None)], logger)


def _adapter_path(adapter: Any) -> str:
    """Of an entry of --lora-paths: a path, "name=path", or an object that has one."""
    if isinstance(adapter, str):
        return adapter.partition("=")[2] or adapter
    return str(adapter.get("lora_path") if isinstance(adapter, dict) else getattr(adapter, "lora_path", adapter))
