"""A real vLLM engine in a child process, driven over a pipe.

The children are forked from a process that has imported vLLM once, so an engine starts in two seconds, not twelve.
Owns: starting, commands, stopping. Must not know: what is tested.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pathlib
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    TORCHDYNAMO_DISABLE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    OMP_NUM_THREADS="1",
    # The server process does not inherit sys.path, only this.
    PYTHONPATH=os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
)
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["preload"])
ANSWER_SECONDS_MAX = 120
DRAIN_SECONDS_MAX = 20


class Engine:
    """The parent's end. Attributes are commands: `engine.generate(...)` runs `Commands.generate` in the child."""

    def __init__(self, model: str, connector: dict[str, Any] | None = None, **settings: Any) -> None:
        environment = settings.pop("environment", {})
        self._pipe, theirs = FORKED.Pipe()
        self.process = FORKED.Process(target=_serve, args=(theirs, str(model), connector, settings, environment))
        self.process.start()
        theirs.close()
        self._answer()

    def __getattr__(self, command: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._pipe.send((command, args, options))
            return self._answer()

        return call

    def close(self) -> None:
        """An orderly end, then a forced one."""
        if self.process.is_alive():
            self._pipe.send(("stop", (), {}))
            self.process.join(30)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _answer(self) -> Any:
        if not self._pipe.poll(ANSWER_SECONDS_MAX):
            raise TimeoutError("the engine does not answer")
        kind, value = self._pipe.recv()
        if kind == "error":
            raise RuntimeError(f"in the engine:\n{value}")
        return value


class Commands:
    """The child's end."""

    def __init__(self, model: str, connector: dict[str, Any] | None, settings: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import KVEventsConfig, KVTransferConfig

        transfer = KVTransferConfig(**settings.pop("transfer")) if "transfer" in settings else None
        if connector is not None:
            extra = dict(connector)
            role = extra.pop("role", "kv_both")
            transfer = KVTransferConfig(
                kv_connector="TurnKVConnector",
                kv_connector_module_path="turnkv.vllm",
                kv_role=role,
                kv_connector_extra_config=extra,
                kv_load_failure_policy="recompute",
            )
        if settings.pop("on_device", False):
            # As on a GPU: the host device copies pages, although the CPU could reach this memory itself.
            import turnkv
            from turnkv.connector import devices

            device = turnkv.Device(kind="host", delay_ms_max=1, seed=5)
            devices.device_of = lambda tensor, staging_bytes=None: device
        if settings.pop("unknown_memory", False):
            # As with an attention back end whose blocks nobody here knows.
            from turnkv.vllm import heads

            heads.axis_of = lambda spec, cache: None
        events = settings.pop("kv_events", None)
        values = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 4096,
            "block_size": 32,
            "seed": 0,
            "distributed_executor_backend": "uni",
            "disable_log_stats": False,
            "prefix_caching_hash_algo": "sha256_cbor",
            "kv_transfer_config": transfer,
            "kv_events_config": KVEventsConfig(**events) if events else None,
        }
        self.llm = LLM(model, **(values | settings))
        self.core = self.llm.llm_engine.engine_core.engine_core

    def generate(self, prompts: list[list[int]], max_tokens: int = 24, extra: list[dict] | None = None) -> list[dict]:
        """Greedy tokens of each prompt, how many prompt tokens came from a cache, and seconds for all together."""
        from vllm import SamplingParams

        common = {"temperature": 0, "max_tokens": max_tokens, "detokenize": False, "ignore_eos": True}
        wanted = [SamplingParams(**common, extra_args=hints) for hints in extra or [{}] * len(prompts)]
        begun = time.monotonic()
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], wanted, use_tqdm=False)
        seconds = time.monotonic() - begun
        return [
            {
                "tokens": list(output.outputs[0].token_ids),
                "cached": output.num_cached_tokens,
                "seconds": seconds,
                "first_seconds": output.metrics.first_token_latency if output.metrics else None,
                "handover": output.kv_transfer_params,
            }
            for output in outputs
        ]

    def generate_while_handling(self, prompt: list[int]) -> list[dict]:
        """The same for one prompt, by a program that is handling an exception of its own."""
        try:
            raise LookupError("of the program")
        except LookupError:
            answers = self.generate([prompt])
            self.drain()
            return answers

    def generate_hinted(self, prompt: list[int], envelope: dict[str, Any]) -> list[int]:
        """Greedy tokens of a request that an orchestrator sent, with its KV hints as vLLM itself carries them."""
        import msgspec
        from vllm import SamplingParams
        from vllm.v1.kv_hints import KvHintsEnvelope

        parameters = SamplingParams(temperature=0, max_tokens=24, detokenize=False, ignore_eos=True)
        hints = msgspec.convert(envelope, KvHintsEnvelope)
        self.llm.llm_engine.add_request("hinted", {"prompt_token_ids": prompt}, parameters, kv_hints=hints)
        while self.llm.llm_engine.has_unfinished_requests():
            for output in self.llm.llm_engine.step():
                if output.finished:
                    tokens = list(output.outputs[0].token_ids)
        self.drain()
        return tokens

    def drain(self) -> float:
        """Steps until all saves are reported: nobody else steps an engine in this process. Returns the seconds."""
        begun = time.monotonic()
        while self.core.scheduler.has_requests():
            assert time.monotonic() - begun < DRAIN_SECONDS_MAX, "requests stay although they are finished"
            self.llm.llm_engine.step()
            time.sleep(0.002)
        return time.monotonic() - begun

    def forget(self) -> None:
        """Empties the engine's own prefix cache."""
        assert self.llm.reset_prefix_cache()

    def processor_seconds(self) -> float:
        """Processor time of this process so far, all threads."""
        return time.process_time()

    def metrics(self) -> dict[str, float]:
        """Counters of ours and of vLLM's external cache, by name and our own label."""
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            if "turnkv" in metric.name or "external_prefix" in metric.name:
                label = "".join(value for key, value in metric.labels.items() if key in ("cause", "result", "kind"))
                name = metric.name.removeprefix("vllm:turnkv_") + (f":{label}" if label else "")
                found[name] = getattr(metric, "value", getattr(metric, "count", 0))
        return found

    def patch(self, name: str, **options: Any) -> None:
        """Makes one of the faults of faults.py happen in this engine."""
        import faults

        getattr(faults, name)(self._connectors()[1], **options)

    def patch_rank(self, name: str, rank: int, **options: Any) -> None:
        """Makes a fault happen in one rank's process only."""
        self.llm.collective_rpc(_patch_rank, args=(name, rank, options))

    def run(self, module: str, function: str, **options: Any) -> Any:
        """Calls a function of a module with (scheduler's connector, worker's connector)."""
        return getattr(importlib.import_module(module), function)(*self._connectors(), **options)

    def session(self, name: str) -> tuple[int, int]:
        """What the pool knows of a session, asked by beginning a turn of it: (number of that turn, pages)."""
        scheduler = self._connectors()[0]._scheduler
        begun = scheduler.door.namespace(scheduler.primary.group).begin_turn(name)
        return begun.turn, begun.pages

    def aside(self) -> str | None:
        """Why the connector neither stores nor loads."""
        return self._connectors()[0]._scheduler.aside

    def free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def _connectors(self) -> tuple[Any, Any]:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return self.core.scheduler.connector, get_kv_transfer_group()


def _patch_rank(worker: Any, name: str, rank: int, options: dict[str, Any]) -> None:
    import faults
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    if worker.rank == rank:
        getattr(faults, name)(get_kv_transfer_group(), **options)


def _serve(pipe: Connection, model: str, connector: Any, settings: dict[str, Any], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    try:
        commands = Commands(model, connector, settings)
        pipe.send(("ready", None))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        return
    while True:
        command, args, options = pipe.recv()
        if command == "stop":
            commands.llm.llm_engine.engine_core.shutdown()
            return
        try:
            pipe.send(("value", getattr(commands, command)(*args, **options)))
        except BaseException:
            pipe.send(("error", traceback.format_exc()))
