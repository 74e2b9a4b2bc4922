"""Contiguous buffers over a network: lent to the server for the time of a call, and nobody's but their owner's after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from conftest import Server
from test_binding import chain

import turnkv


def test_buffers_are_lent_over_a_network_and_given_back(make_server: Callable[..., Server]) -> None:
    server = make_server()
    address = server.on_network()
    pages = turnkv.Pool(f"tcp://{address}").open_namespace("lent", dtype="bf16", layers=8, kv_heads=8, head_dim=64)
    size, rng = pages.shard_bytes, numpy.random.default_rng(5)
    data = [rng.bytes(size) for _ in range(8)]
    block = numpy.frombuffer(b"".join(data[2:6]), dtype=numpy.uint8).copy()
    given = [data[0], bytearray(data[1]), block[:size], block[size : 2 * size]]
    given += [(block.ctypes.data + at * size, size) for at in (2, 3)] + [
        memoryview(data[6]),
        torch.frombuffer(bytearray(data[7]), dtype=torch.uint8),
    ]
    hashes = chain(8, seed=91_000)
    report = pages.offload(hashes, given)
    assert (report.stored, report.declined, report.plane) == (8, 0, "framed")
    apart, joined = [bytearray(size) for _ in range(4)], numpy.zeros((4, size), dtype=numpy.uint8)
    came = pages.reload(hashes, [*apart, *joined])
    assert (came.pages, came.miss, came.plane) == (8, None, "framed")
    assert [*apart, *(bytes(page) for page in joined)] == data
    assert b"".join(given[1:2]) == data[1] and bytes(block) == b"".join(data[2:6])
    # What is lent cannot change its size.
    apart[0].append(1)
    given[1].append(1)
    with pytest.raises(ValueError, match="overlap"):
        pages.reload(hashes[: 2 * 32], [block[:size], block[size // 2 : size // 2 + size]])
