"""Pages cut into canonical shards by KV heads: engines of any tensor-parallel width share them, each rank with one call.

Torch's CPU tensors stand for each rank's KV cache; the host device copies them from threads of its own, as a GPU would.
"""

from __future__ import annotations

import array

import numpy
import pytest
import torch
from conftest import Server

import turnkv

LAYERS, HEADS, DIM, SIZE, SHARDS = 2, 8, 8, 16, 4
"""A page has 4 shards of 2 heads each."""
SHAPE = {"dtype": "bf16", "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM, "page_tokens": SIZE, "tp_size": SHARDS}
SHARD = LAYERS * 2 * (HEADS // SHARDS) * SIZE * DIM * 2
LAYOUTS = pytest.mark.parametrize("layout", ["layer_kv_head_token", "layer_kv_token_head"])


def chain(pages: int, seed: int) -> bytes:
    return turnkv.chain_hashes(array.array("I", range(seed, seed + SIZE * pages)).tobytes(), SIZE)


def cache(tokens: int, fill: bool = True) -> torch.Tensor:
    """[layer, K/V, head, token, dim] of all heads."""
    shape = (LAYERS, 2, HEADS, tokens, DIM)
    return torch.randn(shape).to(torch.bfloat16) if fill else torch.zeros(shape, dtype=torch.bfloat16)


def ranks(stack: torch.Tensor, width: int) -> list[tuple[torch.Tensor, dict[str, int]]]:
    """What each of `width` ranks has of the heads, and which shards these are."""
    heads, shards = HEADS // width, SHARDS // width
    part = [stack[:, :, at * heads : (at + 1) * heads] for at in range(width)]
    return [(own, {"shard": at * shards, "shards": shards}) for at, own in enumerate(part)]


def views(part: torch.Tensor) -> list[tuple[int, int, int, int, int]]:
    return [(kv.data_ptr(), kv.shape[0], kv.stride(0) * 2, kv.stride(1) * 2, DIM * 2) for layer in part for kv in layer]


@LAYOUTS
@pytest.mark.parametrize("tokens", [48, 41])
def test_ranks_of_every_width_share_pages(server: Server, layout: str, tokens: int) -> None:
    pages = server.pool().open_namespace(f"canonical-{tokens}", layout=layout, **SHAPE)
    assert pages.shard_bytes == SHARD
    device, count = turnkv.Device(kind="host"), -(-tokens // SIZE)
    for seed, writers in enumerate([1, 2, 4]):
        stack, hashes = cache(64), chain(count, seed=1000 * seed + tokens)
        for at, (part, which) in enumerate(ranks(stack, writers)):
            assert pages.lookup(hashes) == 0
            assert pages.reload(hashes, turnkv.Strided(views(part), tokens), **which).miss == ("incomplete" if at else "absent")
            if seed % 2:
                report = pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(part), tokens), keep=stack), **which)
            else:
                report = pages.offload(hashes, turnkv.Strided(views(part), tokens), **which)
            assert (report.stored, report.present, report.declined) == (count, 0, 0)
        assert pages.lookup(hashes) == count
        for readers in (1, 2, 4):
            back, there = cache(64, fill=False), cache(64, fill=False)
            for (part, which), (on_device, _) in zip(ranks(back, readers), ranks(there, readers), strict=True):
                assert pages.reload(hashes, turnkv.Strided(views(part), tokens), **which).pages == count
                coming = pages.reload(
                    hashes, turnkv.OnDevice(device, turnkv.Strided(views(on_device), tokens), layers=LAYERS, keep=there), **which
                )
                assert coming.pages_begun == count and coming.result().pages == count
            for found in (back, there):
                assert torch.equal(found[..., :tokens, :], stack[..., :tokens, :])
                assert not found[..., tokens:, :].any()


def test_buffers_and_runs_are_page_after_page(server: Server) -> None:
    for plane in ("shm", "inline"):
        pages = server.pool(data_plane=plane).open_namespace("runs-" + plane, **SHAPE)
        hashes, rng = chain(3, seed=7000), numpy.random.default_rng(7)
        data = [[rng.bytes(SHARD) for _ in range(SHARDS)] for _ in range(3)]
        left = [shard for page in data for shard in page[:2]]
        assert pages.offload(hashes, left, shards=2).stored == 3
        # The other two shards of each page lie in two runs each, anywhere.
        memory = numpy.frombuffer(b"".join(shard for page in data for shard in page[2:]), dtype=numpy.uint8)
        at = memory.ctypes.data + numpy.arange(12, dtype=numpy.uint64) * numpy.uint64(SHARD // 2)
        report = pages.offload(hashes, turnkv.Runs(at.reshape(6, 2), [SHARD // 2] * 2), shard=2, shards=2)
        assert (report.stored, report.present) == (3, 0)
        back = [bytearray(SHARD) for _ in range(12)]
        assert pages.reload(hashes, back, shards=4).pages == 3
        assert back == [shard for page in data for shard in page]
        target = numpy.zeros((9, SHARD), dtype=numpy.uint8)
        rows = target.ctypes.data + numpy.arange(9, dtype=numpy.uint64) * numpy.uint64(SHARD)
        assert pages.reload(hashes, turnkv.Runs(rows.reshape(9, 1), [SHARD]), shard=1, shards=3).pages == 3
        assert [row.tobytes() for row in target] == [shard for page in data for shard in page[1:]]


def test_device_runs_are_page_after_page(server: Server) -> None:
    pages, device = server.pool().open_namespace("device-runs", **SHAPE), turnkv.Device(kind="host")
    hashes = chain(3, seed=8000)
    source = torch.randint(0, 256, (12, SHARD), dtype=torch.uint8)
    target = torch.zeros_like(source)

    def rows(memory: torch.Tensor) -> numpy.ndarray:
        return memory.data_ptr() + numpy.arange(24, dtype=numpy.uint64) * numpy.uint64(SHARD // 2)

    halves = [SHARD // 2] * 2
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Runs(rows(source), halves), keep=source), shards=4).stored == 3
    coming = pages.reload(hashes, turnkv.OnDevice(device, turnkv.Runs(rows(target), halves), layers=2, keep=target), shards=4)
    assert coming.result().pages == 3 and torch.equal(source, target)


def test_a_lease_has_positions_of_whole_pages(server: Server) -> None:
    pages = server.pool().open_namespace("leased", **SHAPE)
    hashes, rng = chain(4, seed=9000), numpy.random.default_rng(9)
    data = [rng.bytes(SHARD) for _ in range(12)]
    pages.offload(hashes[:96], data, shards=4)
    with pages.lease(hashes, shard=1, shards=3) as lease:
        assert (len(lease), lease.miss, lease.verify() // 3) == (9, "absent", 3)
        assert [bytes(lease[at]) for at in range(9)] == [data[page * 4 + at] for page in range(3) for at in (1, 2, 3)]
        target = numpy.zeros((3, SHARD), dtype=numpy.uint8)
        rows = target.ctypes.data + numpy.arange(3, dtype=numpy.uint64) * numpy.uint64(SHARD)
        lease.copy_out(6, turnkv.Runs(rows, [SHARD]))  # page 2
        assert [row.tobytes() for row in target] == data[9:12]
        with pytest.raises(IndexError):
            lease.copy_out(7, turnkv.Runs(rows, [SHARD]))
        lease.finish()


def test_what_does_not_add_up_is_refused(server: Server) -> None:
    pages = server.pool().open_namespace("refused", **SHAPE)
    hashes, stack = chain(2, seed=9500), cache(32)
    buffers = [bytearray(SHARD) for _ in range(8)]
    for count, which in ((4, {"shards": 4}), (8, {}), (8, {"shards": 3})):
        with pytest.raises(ValueError, match="hashes"):
            pages.offload(hashes, buffers[:count], **which)
        with pytest.raises(ValueError, match="hashes"):
            pages.reload(hashes, buffers[:count], **which)
    with pytest.raises(ValueError, match="2 hashes with 4 shards each need 8 pages of runs"):
        pages.offload(hashes, turnkv.Runs(numpy.ones(4, dtype=numpy.uint64), [SHARD]), shards=4)
    for which in ({"shard": 1, "shards": 4}, {"shard": 4}, {"shard": 65535, "shards": 4}):
        with pytest.raises(turnkv.Error, match="of a namespace with 4 shards"):
            pages.reload(hashes, buffers[: 2 * which.get("shards", 1)], **which)
    with pytest.raises(ValueError, match="2 hashes with 4 shards each need 8 pages of runs"):
        few = turnkv.Runs(numpy.ones(4, dtype=numpy.uint64), [SHARD])
        pages.offload(hashes, turnkv.OnDevice(turnkv.Device(kind="host"), few), shards=4)
    with pytest.raises(ValueError, match="8 heads cannot be divided among 3"):
        pages.offload(hashes, turnkv.Strided(views(stack), 32), shards=3)
    assert pages.lookup(hashes) == 0
