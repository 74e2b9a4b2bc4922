#!/usr/bin/env python3
"""Makes kernels.ptx of kernels.cu with NVRTC, NVIDIA's compiler as a library; or checks that it is what the source makes.

    kernels.py            writes kernels.ptx beside this file
    kernels.py --check    compares; exit 1 and a line saying so where they differ

No GPU and no CUDA toolkit is needed, only the PyPI package named below, found by the Python that runs this. That version is old
on purpose: a driver takes PTX of its own CUDA version and older, so PTX of 12.2 runs on every driver from 535 on, and nothing
in the kernels asks for more.
"""

import ctypes
import hashlib
import importlib.util
import pathlib
import sys

PACKAGE = "nvidia-cuda-nvrtc-cu12==12.2.140"
OPTIONS = [b"--gpu-architecture=compute_75", b"--std=c++17"]

SOURCE = pathlib.Path(__file__).with_name("kernels.cu")
TARGET = pathlib.Path(__file__).with_name("kernels.ptx")


def main():
    text = SOURCE.read_bytes()
    made = f"// Made by kernels.py of kernels.cu, whose SHA-256 is {hashlib.sha256(text).hexdigest()}\n" + compiled(text)
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != made:
            sys.exit(f"{TARGET.name} is not what {SOURCE.name} makes: run {pathlib.Path(__file__).name}")
        print(f"{TARGET.name} is what {SOURCE.name} makes")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        TARGET.write_text(made)


def compiled(text):
    """The PTX of a source text."""
    nvrtc = library()
    program = ctypes.c_void_p()
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, SOURCE.name.encode(), 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    failed = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    log = answer(nvrtc, program, "ProgramLog")
    if log:
        print(log, file=sys.stderr)
    if failed or log:
        sys.exit("the kernels must compile without a word")
    return answer(nvrtc, program, "PTX")


def answer(nvrtc, program, what):
    """A text that the compiler holds."""
    size = ctypes.c_size_t()
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.value.decode().strip("\0")


def library():
    """NVRTC of the pinned package."""
    found = importlib.util.find_spec("nvidia.cuda_nvrtc") if importlib.util.find_spec("nvidia") else None
    if found is None:
        sys.exit(f"this Python has no {PACKAGE}: run `make ptx` or `make ptx-check`, which install it into .tools")
    folder = pathlib.Path(next(iter(found.submodule_search_locations))) / "lib"
    nvrtc = ctypes.CDLL(str(folder / "libnvrtc.so.12"))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    wanted = ".".join(PACKAGE.split("==")[1].split(".")[:2])
    if f"{major.value}.{minor.value}" != wanted:
        sys.exit(f"NVRTC {wanted} is wanted, {major.value}.{minor.value} found: another version writes other PTX")
    return nvrtc


def check(nvrtc, code):
    if code:
        sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(code).decode()}")


if __name__ == "__main__":
    main()
