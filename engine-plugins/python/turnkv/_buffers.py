"""Addresses of Python buffers, and views on memory that a lease holds. The binding calls these; torch and numpy are not imported.

Owns: turning numpy arrays, torch tensors and buffer objects into (address, bytes). Must not know: pools, pages.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_ORDER = "<" if sys.byteorder == "little" else ">"
_INTEGER_BYTES = 8
_FORMATS = frozenset(order + letter for order in ("", "@", "=", _ORDER) for letter in "QL")
"""Of buffers of unsigned 64-bit integers; "L" has 8 bytes in some of them only."""


def address(buffer: Any, writable: bool) -> tuple[int, int, Any]:
    """(address, bytes, owner) of a contiguous buffer; the memory stays where it is while `owner` lives.

    Takes (address, bytes) pairs, torch CPU tensors, anything with `__array_interface__` and anything with the buffer
    protocol. Raises TypeError for what is none of these, ValueError for memory that is not contiguous, not on the CPU,
    or read-only where `writable` memory is needed.
    """
    if isinstance(buffer, tuple):
        return _pair(buffer)
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous"):
        return _tensor(buffer)
    if hasattr(buffer, "__array_interface__"):
        return _array(buffer, writable)
    return _buffer(buffer, writable)


def unsigned_integers(buffer: Any) -> tuple[int, int, Any]:
    """(address, count, owner) of unsigned 64-bit integers in this machine's byte order; other types are not reinterpreted.

    Raises TypeError for any other type of item, and what `address` raises.
    """
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "dtype"):
        given, right = str(buffer.dtype), str(buffer.dtype) == "torch.uint64"
    elif hasattr(buffer, "__array_interface__"):
        given = str(buffer.__array_interface__["typestr"])
        right = given == f"{_ORDER}u{_INTEGER_BYTES}"
    else:
        given, right = _item_of(buffer)
    if not right:
        raise TypeError(
            "addresses are unsigned 64-bit integers of this machine's byte order, numpy.uint64 or array('Q'), "
            f"not {given}: convert them with .astype(numpy.uint64)"
        )
    at, size, owner = address(buffer, False)
    return at, size // _INTEGER_BYTES, owner


def view(owner: Any, at: int, size: int) -> memoryview:
    """A read-only memoryview of `size` bytes at address `at`; it keeps `owner` alive."""
    memory: Any = (ctypes.c_ubyte * size).from_address(at)
    memory._owner = owner
    return memoryview(memory).cast("B").toreadonly()


def _item_of(buffer: Any) -> tuple[str, bool]:
    """What a buffer says that its items are, and whether they are unsigned 64-bit integers."""
    try:
        with memoryview(buffer) as memory:
            right = memory.itemsize == _INTEGER_BYTES and memory.format in _FORMATS
            return f"items of {memory.itemsize} bytes and format {memory.format!r}", right
    except TypeError:
        return type(buffer).__name__, False


def _pair(buffer: tuple[Any, ...]) -> tuple[int, int, Any]:
    if len(buffer) != 2 or not all(isinstance(part, int) and part > 0 for part in buffer):
        raise ValueError("a page given as a tuple is (address, bytes), both positive integers")
    return buffer[0], buffer[1], buffer


def _tensor(buffer: Any) -> tuple[int, int, Any]:
    if str(buffer.device) != "cpu":
        raise ValueError(f"a page must be in CPU memory, this tensor is on {buffer.device}")
    if not buffer.is_contiguous():
        raise ValueError("a page's tensor must be contiguous; give strided tensors as turnkv.Strided")
    return buffer.data_ptr(), buffer.numel() * buffer.element_size(), buffer


def _array(buffer: Any, writable: bool) -> tuple[int, int, Any]:
    interface = buffer.__array_interface__
    at, read_only = interface["data"]
    if interface.get("strides") is not None:
        raise ValueError("a page's array must be C-contiguous")
    if writable and read_only:
        raise ValueError("reload needs writable memory, this array is read-only")
    size = int(interface["typestr"][2:])
    for extent in interface["shape"]:
        size *= extent
    return at, size, buffer


def _buffer(buffer: Any, writable: bool) -> tuple[int, int, Any]:
    try:
        memory = memoryview(buffer)
    except TypeError:
        raise TypeError(
            f"a page is (address, bytes), a tensor, an array or a buffer object, not {type(buffer).__name__}"
        ) from None
    if not memory.c_contiguous:
        raise ValueError("a page's buffer must be C-contiguous")
    if not memory.readonly:
        exported = (ctypes.c_ubyte * memory.nbytes).from_buffer(memory)
        return ctypes.addressof(exported), memory.nbytes, exported
    if writable:
        raise ValueError("reload needs writable memory, this buffer is read-only")
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0, len(buffer), buffer
    owned = bytes(memory)
    return ctypes.cast(ctypes.c_char_p(owned), ctypes.c_void_p).value or 0, len(owned), owned
