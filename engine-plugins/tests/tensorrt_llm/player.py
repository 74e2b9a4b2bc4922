"""Plays TensorRT-LLM's executor: calls the connector's classes in its order, with its data, and computes K and V.

What a token's K and V are follows from the tokens up to it, so every byte can be checked; memory that a request has let
go is overwritten. Written from reading the executor loop, the KV cache manager and the connector manager of 1.2.
Owns: that order. Must not know: how the plugin does its work.

A step:  blocks for new requests (match, alloc) - build meta - broadcast - start_load - [wait layer, save layer] * n -
         wait_for_save - sampled tokens and finished requests, of this step or (overlap) the one before - get_finished
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import stand_in
import torch

import turnkv.tensorrt_llm

LAYERS = 2
ITEM_BYTES = 16
"""Of one token's K or V in one layer on one rank."""


@dataclass
class Request:
    """An LlmRequest, as far as a connector may look."""

    request_id: int
    prompt: list[int]
    reply: int
    """Tokens to generate."""
    cache_salt_id: int | None = None
    lora_task_id: int | None = None
    py_lora_path: str | None = None
    multimodal_hashes: list[list[int]] | None = None
    is_dummy_request: bool = False
    tokens: list[int] = field(default_factory=list)
    """As the host knows them."""
    sampled: list[int] = field(default_factory=list)
    """On the device only (overlap)."""
    blocks: list[int] = field(default_factory=list)
    position: int = 0
    """Tokens with K and V."""
    matched: int = 0
    prepopulated: int = 0

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)


@dataclass(frozen=True)
class Step:
    """One turn: who arrives, whose prompt goes on by how many tokens (all, if not named), who is cancelled."""

    arrive: tuple[str, ...] = ()
    chunks: dict[str, int] = field(default_factory=dict)
    cancel: tuple[str, ...] = ()
    fails_at: int | None = None
    """The forward pass ends with an exception before this layer. The executor catches it, fails all requests, goes on."""


class ForwardError(Exception):
    """A forward pass did not come to its end."""


class Engine:
    """One engine of `ranks` ranks with KV memory of its own."""

    def __init__(
        self,
        model: str,
        *,
        ranks: int = 1,
        blocks: int = 64,
        block_tokens: int = 4,
        mla: bool = False,
        overlap: bool = False,
        reuse: bool = False,
        silent: bool = False,
        salt: str = "",
        adapters: dict[int, str] | None = None,
        **args: object,
    ) -> None:
        self.block_tokens, self.overlap, self.reuse, self.mla = block_tokens, overlap, reuse, mla
        self.silent = silent
        """Cancelled requests end without a word to the connector, as in 1.2's loop."""
        cache = {"tokens_per_block": block_tokens, "dtype": "auto", "host_cache_size": 0, "max_attention_window": None}
        cache.update(args.pop("cache", {}))
        self.llm_args = SimpleNamespace(
            **{
                "model": model,
                "dtype": "bfloat16",
                "tensor_parallel_size": ranks,
                "kv_cache_config": SimpleNamespace(**cache),
                "max_seq_len": 4096,
                "max_beam_width": 1,
                **args,
            }
        )
        self.calls: list[tuple[object, ...]] = []
        self.workers = stand_in.ranks.run(ranks, lambda rank: turnkv.tensorrt_llm.Worker(self.llm_args))
        self.scheduler = turnkv.tensorrt_llm.Scheduler(self.llm_args)
        shape = (blocks, LAYERS, 1 if mla else 2, block_tokens * ITEM_BYTES // 2)
        self.caches = [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(ranks)]
        for worker, memory in zip(self.workers, self.caches, strict=True):
            worker.register_kv_caches(memory)
        self.weights, self.adapters = salt, adapters or {}
        """Of the model, and of the adapters by task id."""
        self.free = list(range(blocks))
        self.kept: dict[tuple[object, ...], int] = {}
        """Blocks that stay on the device for reuse, by what is in them."""
        self.active: dict[str, Request] = {}
        self.pending: dict[str, Request] = {}
        self.loose: set[int] = set()
        """Blocks that were free at once, whoever reads them: whoever gets them next overwrites them."""
        self.pinned: dict[int, list[int]] = {}
        self.asked_to_finish: list[int] = []
        self.told: list[set[int]] = [set() for _ in range(ranks)]
        self.known: dict[int, tuple[int, int]] = {}
        """What the connector manager has handed on of a request: tokens and blocks."""
        self.done: dict[str, Request] = {}
        self.steps_held = 0
        self.broken = False
        """A forward pass failed: what the engine itself reuses may be wrong, and is not checked here any more."""

    def play(self, requests: dict[str, Request], script: Sequence[Step]) -> dict[str, Request]:
        """Plays a script, then steps until nothing is left to do. Returns the finished requests."""
        for step in script:
            self.step(requests, step)
        while self.active:
            self.step(requests, Step())
        self.drain()
        return self.done

    def drain(self) -> None:
        """Turns the loop without a batch until no blocks are held any more, as TensorRT-LLM does while it waits."""
        for _ in range(4000):
            if not self.pinned:
                return
            self.steps_held += 1
            self._get_finished()
            time.sleep(0.002)
        raise AssertionError(f"blocks are held for ever: {self.pinned}")

    def step(self, requests: dict[str, Request], step: Step) -> None:
        """One turn of the loop."""
        for name in step.arrive:
            request = requests[name]
            request.tokens = list(request.prompt)
            self.active[name] = request
            self._add_sequence(request)
        batch = {name: self._scheduled(name, request, step) for name, request in self.active.items()}
        self._build(batch)
        for worker in self.workers:
            worker.start_load_kv(None)
        try:
            self._forward(batch, step.fails_at)
        except ForwardError:
            self._fail_all()
        previous, self.pending = self.pending, dict(self.active)
        for name in list(previous if self.overlap else self.active):
            if name in self.active:
                self._update(name)
        for name in step.cancel:
            self._finish(name, told=not self.silent)
        self._get_finished()

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        """(on the device, from the pool) when the request began."""
        return request.prepopulated, request.matched

    def _add_sequence(self, request: Request) -> None:
        """The KV cache manager gives a request its blocks, and asks the connector what it can bring."""
        count = -(-len(request.prompt) // self.block_tokens)
        while self.reuse and (len(request.blocks) + 1) * self.block_tokens < len(request.prompt):
            key = self._key(request, (len(request.blocks) + 1) * self.block_tokens)
            if key not in self.kept:
                break
            request.blocks.append(self.kept[key])
        request.prepopulated = len(request.blocks) * self.block_tokens
        request.blocks += [self._take() for _ in range(count - len(request.blocks))]
        self._say("get_num_new_matched_tokens", request.request_id, request.prepopulated)
        matched, is_async = self.scheduler.get_num_new_matched_tokens(request, request.prepopulated)
        assert not (is_async and matched == 0)
        assert request.prepopulated + matched < len(request.prompt), "one token must be left to compute"
        request.matched, request.position = matched, request.prepopulated + matched
        self._say("update_state_after_alloc", request.request_id)
        self.scheduler.update_state_after_alloc(request, list(request.blocks))

    def _scheduled(self, name: str, request: Request, step: Step) -> int:
        left = len(request.prompt) - request.position
        if left > 0:
            return min(left, step.chunks.get(name, left))
        if request.position % self.block_tokens == 0 and request.position // self.block_tokens == len(request.blocks):
            request.blocks.append(self._take())
        return 1

    def _build(self, batch: dict[str, int]) -> None:
        """Scheduler output, metadata, its way to the ranks."""
        output = stand_in.SchedulerOutput()
        for name, scheduled in batch.items():
            request = self.active[name]
            is_new = request.request_id not in self.known
            tokens, blocks = self.known.get(request.request_id, (0, 0))
            in_context = request.position < len(request.prompt)
            position = request.position if in_context else len(request.tokens) - 1
            if is_new:
                position -= request.matched
            data = stand_in.RequestData(request.request_id, request.tokens[tokens:], request.blocks[blocks:], position, scheduled)
            self.known[request.request_id] = (len(request.tokens), len(request.blocks))
            (output.new_requests if is_new else output.cached_requests).append(data)
        self._say("build_connector_meta", *sorted(batch))
        sent = pickle.dumps(self.scheduler.build_connector_meta(output))
        for worker in self.workers:
            worker.bind_connector_meta(pickle.loads(sent))

    def _forward(self, batch: dict[str, int], fails_at: int | None) -> None:
        """Reads what came before, computes what is scheduled: on every rank, layer by layer."""
        for name in batch:
            self._overwrite(self.active[name])
            if not self.broken:
                self._check(self.active[name], self.active[name].position)
        for layer in range(LAYERS):
            if layer == fails_at:
                raise ForwardError
            for rank, worker in enumerate(self.workers):
                worker.wait_for_layer_load(layer, None)
                for name, scheduled in batch.items():
                    request = self.active[name]
                    for at in range(request.position, request.position + scheduled):
                        self._write(rank, layer, request, at)
                worker.save_kv_layer(layer, None)
        for worker in self.workers:
            worker.wait_for_save(None)
        for name, scheduled in batch.items():
            request = self.active[name]
            request.position += scheduled
            if request.position >= len(request.prompt):
                request.sampled.append(self._sample(request))

    def _fail_all(self) -> None:
        """As the executor does it: no `wait_for_save`, and the prompts' blocks are kept for reuse, computed or not."""
        self.broken = True
        for name in list(self.active):
            request = self.active[name]
            request.position = len(request.prompt)
            self._finish(name)

    def _update(self, name: str) -> None:
        """The host learns a sampled token; a request that has all of its reply is over."""
        request = self.active[name]
        if not request.sampled:
            return
        request.tokens.append(request.sampled.pop(0))
        if len(request.tokens) - len(request.prompt) == request.reply:
            self._finish(name)

    def _finish(self, name: str, told: bool = True) -> None:
        """A request ends: its blocks go at once, or when all ranks have told that they are saved.

        Blocks are held by their place in the reuse tree: of two with the same content, the one that is there.
        """
        request = self.active.pop(name)
        self.done[name] = request
        held = told and self.scheduler.request_finished(request, list(request.blocks))
        self._say("request_finished", request.request_id, held)
        if self.reuse:
            for end in range(self.block_tokens, len(request.tokens), self.block_tokens):
                key = self._key(request, end)
                if end <= request.position and key not in self.kept:
                    self.kept[key] = request.blocks[end // self.block_tokens - 1]
        pinned = [block for block in request.blocks if held and (not self.reuse or block in self.kept.values())]
        loose = [block for block in request.blocks if block not in pinned and block not in self.kept.values()]
        self.free.extend(block for block in loose if block not in self.free)
        self.loose.update(loose)
        if held:
            self.pinned[request.request_id] = pinned
            self.asked_to_finish.append(request.request_id)

    def _get_finished(self) -> None:
        new, self.asked_to_finish = self.asked_to_finish, []
        for worker, told in zip(self.workers, self.told, strict=True):
            saved, loaded = worker.get_finished(list(new), [])
            assert loaded == []
            assert set(saved) <= set(self.pinned), "told about a request that was not asked for"
            assert not told & set(saved), "told twice"
            told.update(saved)
        for request_id in set.intersection(*self.told):
            self._release(self.pinned.pop(request_id))
            self._say("released", request_id)
            for told in self.told:
                told.discard(request_id)

    def _release(self, blocks: list[int]) -> None:
        """Blocks are free: whoever reads them from now on reads garbage."""
        for block in blocks:
            if block not in self.kept.values() and block not in self.free:
                self.free.append(block)
                for cache in self.caches:
                    cache[block].view(torch.uint8).random_(0, 256)

    def _overwrite(self, request: Request) -> None:
        """The forward pass may write anywhere in a new block before it holds what it should."""
        for at, block in enumerate(request.blocks):
            if block in self.loose:
                self.loose.discard(block)
                if at * self.block_tokens >= request.position:
                    for cache in self.caches:
                        cache[block].view(torch.uint8).random_(0, 256)

    def _take(self) -> int:
        return self.free.pop(0)

    def _key(self, request: Request, end: int) -> tuple[object, ...]:
        return (request.cache_salt_id, request.lora_task_id, *request.tokens[:end])

    def _device_tokens(self, request: Request) -> list[int]:
        return request.tokens + request.sampled

    def _sample(self, request: Request) -> int:
        return hashlib.sha256(repr(self._device_tokens(request)).encode()).digest()[0]

    def _item(self, rank: int, layer: int, request: Request, at: int, part: int) -> bytes:
        """K (part 0) or V of one token: it follows from all tokens up to it."""
        prefix = self._device_tokens(request)[: at + 1]
        adapter = self.adapters.get(request.lora_task_id, request.lora_task_id)
        what = (self.weights, 0 if self.mla else rank, layer, part, request.cache_salt_id, adapter, prefix)
        return hashlib.blake2b(repr(what).encode(), digest_size=ITEM_BYTES).digest()

    def _places(self, rank: int, layer: int, request: Request, at: int) -> list[torch.Tensor]:
        block = self.caches[rank][request.blocks[at // self.block_tokens], layer].view(torch.uint8)
        start = at % self.block_tokens * ITEM_BYTES
        return [block[part, start : start + ITEM_BYTES] for part in range(block.shape[0])]

    def _write(self, rank: int, layer: int, request: Request, at: int) -> None:
        for part, place in enumerate(self._places(rank, layer, request, at)):
            item = self._item(rank, layer, request, at, part)
            place.copy_(torch.frombuffer(bytearray(item), dtype=torch.uint8))

    def _check(self, request: Request, end: int) -> None:
        """All that attention is about to read is right, to the byte."""
        for rank in range(len(self.workers)):
            for layer in range(LAYERS):
                for at in range(end):
                    for part, place in enumerate(self._places(rank, layer, request, at)):
                        right = self._item(rank, layer, request, at, part)
                        assert bytes(place.tolist()) == right, f"wrong KV: {rank=} {layer=} {at=}"

    def _say(self, *call: object) -> None:
        self.calls.append(call)
