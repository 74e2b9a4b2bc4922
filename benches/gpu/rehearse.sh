#!/usr/bin/env bash
# The GPU benches as a GPU machine without a toolchain will run them, but without the GPU: `make gpu-rehearsal`, after
# `make gpu-pack`. Tree and .gpu go into a bare folder, as they would be carried, and everything in them runs, small, with a PATH
# that has nothing but the tools named below.
#   PYTHON=python3    a Python with torch, transformers and numpy
#   CARRIED_MIB=64    what tree and .gpu may come to in all
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=$(command -v "${PYTHON:-python3}")
most=$((${CARRIED_MIB:-64} << 20))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tree" "$folder/bin" "$folder/home" "$folder/cuda"

git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from - | tar --extract --directory "$folder/tree"
cp -r .gpu "$folder/tree/"
bytes=$(du --summarize --bytes "$folder/tree" | cut -f1)
echo "rehearsal: $((bytes >> 20)) MiB to be carried"
[ "$bytes" -le "$most" ] || { echo "error: more than $((most >> 20)) MiB" >&2; exit 1; }
for tool in bash cat chmod dirname head ls mkdir mktemp rm tee timeout; do ln -s "$(command -v $tool)" "$folder/bin/"; done

bare() { env -i HOME="$folder/home" PATH="$folder/bin" PYTHON="$python" TINY=1 "$@" "$folder/tree/benches/gpu.sh"; }
bare OUT="$folder/host"
# The driver half once more through the CUDA driver, over a driver library that is this machine's memory.
if c++ -std=c++17 -O1 -shared -fPIC -Wno-unknown-pragmas -U_FORTIFY_SOURCE server/transfer/tests/kernels/libcuda.cpp \
    -o "$folder/cuda/libcuda.so.1"; then
    bare OUT="$folder/over" PARTS=driver DEVICE=cuda LD_LIBRARY_PATH="$folder/cuda"
fi
for result in host/driver.json host/results.json; do
    [ -s "$folder/$result" ] || { echo "error: no $result" >&2; exit 1; }
done
echo "rehearsal: all of it ran, with nothing but $(ls "$folder/bin" | tr '\n' ' ')and Python"
