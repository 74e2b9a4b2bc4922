#!/bin/bash
# The GPU benches of the Python side: nothing is built or downloaded here.
#   benches/gpu/run.sh --tests     the tests that want a GPU (with pytest)
#   benches/gpu/run.sh [--tiny] [--out DIR] [--parts ttft,exact,turns,stalls,interference] [--seconds 180]
# Needs python3 with torch (CUDA), transformers and numpy; $PYTHON names another one. The package is what that Python finds, else
# the newest target/wheels/turnkv-*.whl; the server is $TURNKV_SERVER or target/release/turnkv. Results: tables on stdout,
# results.json and SVG plots in DIR ($OUT, or target/gpu-results).
# Without a GPU it says so in one line and ends with status 0. --tiny needs none: a small model on the CPU and the host
# device, to check that everything works; its times mean nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$root/target}

if ! "$python" -c 'import turnkv' 2>/dev/null; then
    wheel=$(ls -t "$target"/wheels/turnkv-*.whl 2>/dev/null | head -1 || true)
    [ -n "$wheel" ] || { echo "no turnkv package: run \`make python\`, or set PYTHONPATH" >&2; exit 1; }
    package=$(mktemp -d)
    trap 'rm -rf "$package"' EXIT
    "$python" -m zipfile -e "$wheel" "$package"
    export PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH}
fi
export TURNKV_SERVER=${TURNKV_SERVER:-$target/release/turnkv}
if [ "${1:-}" = --tests ]; then
    "$python" -m pytest -q -p no:cacheprovider "$root/engine-plugins/tests/test_gpu.py"
else
    "$python" "$here/run.py" --out "${OUT:-$target/gpu-results}" "$@"
fi
