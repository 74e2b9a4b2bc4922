#!/bin/bash
# The GPU benches of the Python side: nothing is built or downloaded here.
#   benches/gpu/run.sh [--tiny] [--out DIR] [--parts ttft,exact,turns,interference] [--seconds 540]
# Needs python3 with torch (CUDA), transformers and numpy; $PYTHON names another one. The package comes from $TURNKV_WHEEL, the
# newest target/wheels/turnkv-*.whl, or the source tree with its compiled module beside it; the server from $TURNKV_SERVER or
# target/release/turnkv. Results: tables on stdout, results.json and SVG plots in DIR ($OUT, or target/gpu-results).
# Without a GPU it says so in one line and ends with status 0. --tiny needs none: a small model on the CPU and the host
# device, to check that everything works; its times mean nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
package=$root/engine-plugins/python
unpacked=

wheel=${TURNKV_WHEEL:-$(ls -t "$root"/target/wheels/turnkv-*.whl 2>/dev/null | head -1 || true)}
if [ ! -e "$package/turnkv/_turnkv.abi3.so" ] || [ -n "${TURNKV_WHEEL:-}" ]; then
    [ -n "$wheel" ] || { echo "no turnkv wheel: run \`make python\`, or set TURNKV_WHEEL" >&2; exit 1; }
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    "$python" -m zipfile -e "$wheel" "$unpacked"
    package=$unpacked
fi
PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} TURNKV_SERVER=${TURNKV_SERVER:-$root/target/release/turnkv} \
    "$python" "$here/run.py" --out "${OUT:-$root/target/gpu-results}" "$@"
