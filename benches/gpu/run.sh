#!/bin/bash
# The GPU benches of the Python side: nothing is built or downloaded here.
#   benches/gpu/run.sh [--tiny] [--out DIR] [--parts ttft,exact,turns,interference] [--seconds 180]
# Needs python3 with torch (CUDA), transformers and numpy; $PYTHON names another one. The package comes from $TURNKV_WHEEL, the
# source tree if its compiled module is there, an installed one, or the newest target/wheels/turnkv-*.whl; the server from
# $TURNKV_SERVER or target/release/turnkv. Results: tables on stdout, results.json and SVG plots in DIR ($OUT, or target/gpu-results).
# Without a GPU it says so in one line and ends with status 0. --tiny needs none: a small model on the CPU and the host
# device, to check that everything works; its times mean nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
package=$root/engine-plugins/python

target=${CARGO_TARGET_DIR:-$root/target}
wheel=${TURNKV_WHEEL:-}
if [ -z "$wheel" ] && [ ! -e "$package/turnkv/_turnkv.abi3.so" ]; then
    package=
    if ! "$python" -c 'import turnkv' 2>/dev/null; then
        wheel=$(ls -t "$target"/wheels/turnkv-*.whl 2>/dev/null | head -1 || true)
        [ -n "$wheel" ] || { echo "no turnkv package: run \`make python\`, or set TURNKV_WHEEL" >&2; exit 1; }
    fi
fi
if [ -n "$wheel" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    "$python" -m zipfile -e "$wheel" "$unpacked"
    package=$unpacked
fi
PYTHONPATH=${package:+$package:}${PYTHONPATH:-} TURNKV_SERVER=${TURNKV_SERVER:-$target/release/turnkv} \
    "$python" "$here/run.py" --out "${OUT:-$target/gpu-results}" "$@"
