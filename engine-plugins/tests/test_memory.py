"""Where pages lie, as values: one offload and one reload take them, whatever they are, and a value says the same at each call."""

from __future__ import annotations

import array
import ctypes

import numpy
import pytest
import torch
from conftest import Server
from test_device import LAYERS, PAGE, SHAPE, SIZE, chain, stack_of, views

import turnkv

DEVICE = turnkv.Device(kind="host")


def rows(memory: numpy.ndarray) -> numpy.ndarray:
    """The addresses of a memory's rows."""
    return memory.ctypes.data + numpy.arange(len(memory), dtype=numpy.uint64) * numpy.uint64(memory.shape[1])


def test_one_verb_takes_every_kind_of_memory(server: Server) -> None:
    pages = server.pool().open_namespace("kinds-of-memory", **SHAPE)
    verbs = [name for name in dir(pages) if name.startswith(("offload", "reload"))]
    assert verbs == ["offload", "reload"]
    hashes, stack = chain(3, seed=21_000), stack_of(3 * SIZE)
    flat = numpy.zeros((3, PAGE), dtype=numpy.uint8)
    assert pages.offload(hashes, turnkv.Strided(views(stack), 3 * SIZE)).stored == 3
    report = pages.reload(hashes, list(flat))
    assert isinstance(report, turnkv.ReloadReport) and report.pages == 3
    for memory in (numpy.zeros_like(flat), numpy.zeros_like(flat)):
        runs = turnkv.Runs(rows(memory), [PAGE])
        coming = pages.reload(hashes, turnkv.OnDevice(DEVICE, runs, keep=memory))
        assert isinstance(coming, turnkv.DeviceReload) and coming.result().pages == 3
        assert pages.offload(hashes, turnkv.OnDevice(DEVICE, runs)).present == pages.offload(hashes, runs).present == 3
        assert (memory == flat).all()
        memory[:] = 0
        assert pages.reload(hashes, runs).pages == 3 and (memory == flat).all()


def test_a_value_is_what_it_was_made_of() -> None:
    addresses = array.array("Q", [4096, 8192, 12288, 16384])
    runs = turnkv.Runs(addresses, [64, 32])
    addresses[0] = 0
    assert (runs.addresses, runs.lengths) == ([4096, 8192, 12288, 16384], [64, 32])
    strided = turnkv.Strided([(4096, 2, 1024, 16, 16)] * 4, 41)
    assert (strided.views, strided.tokens) == ([(4096, 2, 1024, 16, 16)] * 4, 41)
    kept = object()
    there = turnkv.OnDevice(DEVICE, runs, stream=7, layers=3, keep=kept)
    assert (there.device, there.pages, there.stream, there.layers, there.keep) == (DEVICE, runs, 7, 3, kept)
    assert repr(runs) == "Runs(4 addresses, lengths=[64, 32])" and repr(strided) == "Strided(4 views, tokens=41)"
    assert repr(there) == f"OnDevice({DEVICE!r}, {runs!r}, stream=7, layers=3)"
    with pytest.raises(AttributeError):
        there.layers = 4


def test_addresses_are_unsigned_64_bit_integers_and_nothing_is_taken_for_them() -> None:
    at = [4096, 1 << 63]
    given = [
        numpy.array(at, numpy.uint64),
        numpy.array(at, numpy.uint64).reshape(2, 1),
        memoryview(numpy.array(at, numpy.uint64)),
        array.array("Q", at),
        (ctypes.c_uint64 * 2)(*at),
        torch.tensor([4096, 8192], dtype=torch.uint64),
    ]
    for addresses in given[:-1]:
        assert turnkv.Runs(addresses, [64]).addresses == at
    assert turnkv.Runs(given[-1], [64]).addresses == [4096, 8192]
    for other in [
        numpy.zeros(2, numpy.float64),
        numpy.zeros(2, numpy.int64),
        numpy.zeros(4, numpy.uint32),
        numpy.zeros(2, ">u8"),
        numpy.zeros(2, "datetime64[s]"),
        numpy.zeros(16, numpy.uint8),
        memoryview(numpy.zeros(2, ">u8")),
        array.array("q", [4096]),
        array.array("d", [4096]),
        torch.zeros(2, dtype=torch.int64),
        bytes(8),
        bytearray(8),
        (4096, 8),
        [4096],
        None,
    ]:
        with pytest.raises(TypeError, match=r"unsigned 64-bit integers .*not .*astype"):
            turnkv.Runs(other, [64])
    with pytest.raises(ValueError, match="contiguous"):
        turnkv.Runs(numpy.zeros((2, 2), numpy.uint64)[:, 0], [64])
    for lengths in (b"@", bytearray(b"@"), [64.0], numpy.array([64.0]), ["64"], [-1]):
        with pytest.raises((TypeError, OverflowError)):
            turnkv.Runs(given[0], lengths)
    assert turnkv.Runs(given[0], numpy.array([64], numpy.uint32)).lengths == [64]


def test_memory_that_cannot_be_meant(server: Server) -> None:
    pages = server.pool().open_namespace("no-memory", **SHAPE)
    one, none = array.array("Q", [4096]), array.array("Q")
    for addresses, lengths in [(one, []), (one, [1, 1])]:
        with pytest.raises(ValueError):
            turnkv.Runs(addresses, lengths)
    for nothing in ([bytearray(PAGE)], turnkv.OnDevice(DEVICE, turnkv.Runs(none, [1])), None):
        with pytest.raises(TypeError, match="Runs or Strided"):
            turnkv.OnDevice(DEVICE, nothing)
    with pytest.raises(TypeError):
        turnkv.OnDevice(None, turnkv.Runs(none, [1]))
    hashes, tail = chain(3, seed=22_000), turnkv.Strided(views(stack_of(3 * SIZE)), 2 * SIZE + 9)
    for memory in (tail, turnkv.OnDevice(DEVICE, tail)):
        with pytest.raises(ValueError, match="a tail of 9, tail_tokens=3 says otherwise"):
            pages.offload(hashes, memory, tail_tokens=3)
    assert pages.lookup(hashes) == 0 and pages.offload(hashes, tail, tail_tokens=9).stored == 3


def test_a_page_pool_takes_what_is_on_its_device(server: Server) -> None:
    pages = server.pool().open_namespace("near-memory", **SHAPE)
    near, hashes = turnkv.GpuPagePool(DEVICE, PAGE, 8), chain(3, seed=23_000)
    data = numpy.random.default_rng(23).integers(0, 256, (3, PAGE), dtype=numpy.uint8)
    back = numpy.zeros_like(data)
    assert near.put(pages, hashes, turnkv.OnDevice(DEVICE, turnkv.Runs(rows(data), [PAGE]), keep=data)) == 3
    target = turnkv.OnDevice(DEVICE, turnkv.Runs(rows(back), [PAGE]), layers=0, keep=back)
    assert near.get(pages, hashes, target).result() == 3 and (back == data).all()
    elsewhere = turnkv.OnDevice(turnkv.Device(kind="host"), turnkv.Strided(views(stack_of(3 * SIZE)), 3 * SIZE), layers=LAYERS)
    with pytest.raises(ValueError, match="another device"):
        near.put(pages, hashes, elsewhere)
    with pytest.raises(ValueError, match="another device"):
        near.get(pages, hashes, elsewhere)
    with pytest.raises(TypeError):
        near.put(pages, hashes, [data[0]])
