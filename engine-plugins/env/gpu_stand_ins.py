"""Stand-ins for the GPU libraries that PyPI's torch names but a machine without a GPU never calls.

PyPI has one Linux build of torch, the CUDA one. Its loader insists on 2 GB of NVIDIA libraries even where no GPU is. This
script reads which symbols torch wants of each (readelf) and builds small shared libraries that have those names; a call
into one ends the process with a message. Only libcudart (2 MB) is the real one: torch calls it while it loads.

    python gpu_stand_ins.py SITE_PACKAGES        exit status 0: every library that was missing has a stand-in
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile

# soname -> what its unversioned symbols begin with (most of NVIDIA's libraries version their symbols by soname).
LIBRARIES = {
    "libcublas.so.13": "cublas",
    "libcublasLt.so.13": "cublasLt",
    "libcudnn.so.9": "cudnn",
    "libcufft.so.12": "cufft",
    "libcufile.so.0": "cuFile",
    "libcupti.so.13": "cupti",
    "libcurand.so.10": "curand",
    "libcusolver.so.12": "cusolver",
    "libcusparse.so.12": "cusparse",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvrtc.so.13": "nvrtc",
    "libnvshmem_host.so.3": "nvshmem",
}
VERSION_OWNERS = {"NVSHMEM": "libnvshmem_host.so.3"}
UNDEFINED = re.compile(r"\bUND\s+([A-Za-z_]\w*)(?:@(\S+))?")

SOURCE_HEAD = """
#include <stdlib.h>
#include <unistd.h>
static const char message[] = "{soname} is a stand-in: this Python environment has no GPU libraries\\n";
__attribute__((used)) static void absent(void) {{
    if (write(2, message, sizeof message - 1) < 0) {{}}
    abort();
}}
"""


def wanted_symbols(torch_libraries: list[pathlib.Path]) -> dict[str, dict[str, str | None]]:
    """soname -> {symbol: version node or None} over all of torch's own libraries."""
    wanted: dict[str, dict[str, str | None]] = {soname: {} for soname in LIBRARIES}
    by_length = sorted(LIBRARIES.items(), key=lambda item: -len(item[1]))
    for library in torch_libraries:
        listing = subprocess.run(["readelf", "-W", "--dyn-syms", str(library)], check=True, capture_output=True, text=True).stdout
        for symbol, version in UNDEFINED.findall(listing):
            owner = VERSION_OWNERS.get(version, version)
            if owner in wanted:
                wanted[owner][symbol] = version
            elif not version:
                owner = next((soname for soname, prefix in by_length if symbol.startswith(prefix)), None)
                if owner is not None:
                    wanted[owner][symbol] = None
    return wanted


def build(soname: str, symbols: dict[str, str | None], folder: pathlib.Path) -> None:
    """Compiles one stand-in into `folder`; renamed into place, so an interrupted run leaves none half-written."""
    source = SOURCE_HEAD.format(soname=soname)
    source += "".join(f'void {symbol}(void) __attribute__((alias("absent")));\n' for symbol in sorted(symbols))
    nodes = sorted({version for version in symbols.values() if version})
    with tempfile.TemporaryDirectory() as scratch:
        script = pathlib.Path(scratch, "versions")
        script.write_text(
            "".join(
                node + " { global: " + " ".join(f"{s};" for s, v in sorted(symbols.items()) if v == node) + " };\n"
                for node in nodes
            )
        )
        partial = folder / f".{soname}.partial"
        command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", f"-Wl,-soname,{soname}", "-o", str(partial)]
        if nodes:
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, input=source, text=True, check=True)
        partial.rename(folder / soname)


def main(site_packages: pathlib.Path) -> None:
    """Builds every stand-in that has no real library beside it."""
    torch_libraries = sorted((site_packages / "torch" / "lib").glob("*.so"))
    if not torch_libraries:
        sys.exit(f"no torch in {site_packages}")
    present = {path.name for path in (site_packages / "nvidia").rglob("*.so*")}
    folder = site_packages / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for soname, symbols in wanted_symbols(torch_libraries).items():
        if soname not in present:
            build(soname, symbols, folder)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
