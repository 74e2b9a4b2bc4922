"""The device form of `TurnKVCache`, for models on a GPU: pages move between the pool's memory and the model's own tensors.

Owns: tensors on a device <-> pages, which stream waits for what, whether what was read can be trusted. Must not know: which
pages a turn needs, sessions, how copies are made.

    begin     pages -> tensors, layer by layer, on the client's stream     the model's layer l waits for layer l, on the device
    last layer of the first forward pass: all pages are verified, or MappingLost is raised before a token comes of them
    end_turn  tensors -> pages, behind what the model's stream was given
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

import turnkv
from turnkv.connector.devices import current, device_of

from .common import MappingLost, Unsupported, view
from .device_layers import DeviceLayer
from .turns import Brought, Shape, TurnCache, shape_of

RUN_BYTES = 128 << 10
"""K of a layer in one page, unless the user says otherwise: large enough for a copy engine's full rate."""
PAGE_TOKENS_MIN, PAGE_TOKENS_MAX = 16, 128


class DeviceCache(TurnCache):
    """See `turnkv.transformers.TurnKVCache`.

    `device`: the `turnkv.Device` of the model; by default the one that its tensors are on. `overlap`: the model may begin
    before all pages are there.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        session: str | None,
        pool: turnkv.Pool | str | None = None,
        *,
        device: turnkv.Device | None = None,
        overlap: bool = True,
        page_tokens: int | None = None,
        **settings: Any,
    ) -> None:
        places = {parameter.device for parameter in model.parameters()}
        if len(places) > 1:
            raise Unsupported(f"a model on several devices is not supported: {', '.join(sorted(map(str, places)))}")
        self._place = places.pop()
        shape = shape_of(model, PAGE_TOKENS_MIN if page_tokens is None else page_tokens)
        if page_tokens is None:
            shape = _with_long_runs(shape)
        found = device if device is not None else device_of(next(model.parameters()))
        if found is None:
            raise Unsupported("this form is for models on a GPU: give it a device, or leave it out")
        self._device, self._overlap = found, overlap
        self._flight: turnkv.DeviceReload | None = None
        self._brought = Brought(0)
        super().__init__(model, session, pool, shape=shape, layout="layer_kv_token_head", **settings)

    def drop(self) -> None:
        """Empties this cache and lets its memory go; what the pool has stays there."""
        self._flight = None  # copies under way keep the tensors until they have ended
        super().drop()

    # ---- what the turn asks for -----------------------------------------------------------------------------------

    def _bring(self, pages: turnkv.Namespace, hashes: bytes, tokens: int) -> Brought:
        for layer in self.layers:
            layer.prepare(tokens)
        flight = pages.reload_device_strided(
            self._device, hashes, self._views(0), tokens, stream=current(self._place),
            layers=self._shape.layers if self._overlap else 0, session=self.session, deadline_ms=self._deadline_ms,
            keep=self._tensors(),
        )
        self._flight, self._brought = flight, Brought(flight.pages_begun)
        if not self._overlap:
            self._brought = _of(flight.result())
            self._flight = None
        loaded = min(self._brought.pages * self._shape.page_tokens, tokens)
        for layer in self.layers:
            layer.load(loaded)
        return self._brought

    def _send(
        self, pages: turnkv.Namespace, hashes: bytes, first: int, tokens: int, **settings: Any
    ) -> turnkv.OffloadReport:
        return pages.offload_device_strided(
            self._device, hashes, self._views(first), tokens - first, stream=current(self._place), keep=self._tensors(),
            **settings,
        )

    def _fresh_layers(self) -> list[Any]:
        def arrive(number: int) -> Any:
            return lambda: self._arrive(number)

        return [DeviceLayer(self._shape, self._place, arrive(number)) for number in range(self._shape.layers)]

    # ---- what was begun -------------------------------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        """The model is about to read a layer. The last one tells whether all of them were good."""
        if self._flight is None:
            return
        self._flight.wait_layer(number, current(self._place))
        if number == self._shape.layers - 1:
            self._settle()

    def _settle(self) -> None:
        """Raises MappingLost if what was loaded is not what was promised."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            report = flight.result()
        except turnkv.Error as error:
            self._give_up(f"error:{error.kind}")
        if report.miss is not None:
            self.turn.misses[report.miss] += 1
        if report.pages < self._brought.pages:
            self._give_up(report.miss or "absent")
        self._count_tiers(_of(report))

    def _give_up(self, cause: str) -> NoReturn:
        self.turn.misses[f"lost:{cause}"] += 1
        self.turn.forget_loaded()
        self.drop()
        raise MappingLost(f"pages came damaged or too late ({cause}): start the turn again with begin()")

    def _views(self, first: int) -> list[tuple[int, int, int, int, int]]:
        return [view(tensor, first) for layer in self.layers for tensor in (layer.keys, layer.values)]

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        """What must stay where it is while it is copied."""
        return tuple(tensor for layer in self.layers for tensor in (layer.keys, layer.values))


def _of(report: turnkv.ReloadReport) -> Brought:
    return Brought(report.pages, 0, report.from_dram, report.from_nvme, report.miss)


def _with_long_runs(shape: Shape) -> Shape:
    """Pages of as many tokens as a good run takes."""
    tokens = PAGE_TOKENS_MIN
    while tokens < PAGE_TOKENS_MAX and tokens * shape.row_bytes < RUN_BYTES:
        tokens *= 2
    return Shape(shape.layers, shape.kv_heads, shape.head_dim, tokens, shape.dtype)
