#!/usr/bin/env python3
"""Makes PTX of CUDA C++ with NVRTC, NVIDIA's compiler as a library; or checks that it is what the source makes.

    kernels.py [--check] [FILE.cu ...]

Without files: kernels.cu beside this one. The PTX is written beside each; with --check it is compared: exit 1 and a line saying
so where they differ.

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

OURS = pathlib.Path(__file__).with_name("kernels.cu")


def main():
    checks = sys.argv[1:2] == ["--check"]
    named = sys.argv[2:] if checks else sys.argv[1:]
    for source in [pathlib.Path(name) for name in named] or [OURS]:
        if source.suffix != ".cu":
            sys.exit(__doc__)
        make(source, checks)


def make(source, checks):
    """Writes the PTX of a source beside it, or compares."""
    text, target = source.read_bytes(), source.with_suffix(".ptx")
    digest = hashlib.sha256(text).hexdigest()
    made = f"// Made by kernels.py of {source.name}, whose SHA-256 is {digest}\n" + compiled(text, source.name)
    if not checks:
        target.write_text(made)
    elif target.read_text() != made:
        sys.exit(f"{target.name} is not what {source.name} makes: run {pathlib.Path(__file__).name}")
    else:
        print(f"{target.name} is what {source.name} makes")


def compiled(text, name):
    """The PTX of a source text."""
    nvrtc = library()
    program = ctypes.c_void_p()
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None))
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
