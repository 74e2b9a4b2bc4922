#!/usr/bin/env bash
# All GPU benches: `make bench-gpu`. Skips with one line where no GPU is; builds into .gpu where there is a toolchain, else runs
# what was carried there.
#   OUT=DIR          where results go (target/gpu-results)
#   PARTS="driver"   only the Rust bench; "engine": the Python ones; "tests": the tests that want a GPU; unset or empty: all three
#   SECONDS_MAX=N    each part leaves out what it has not begun after so long (180: all end within 12 minutes; 400 for one alone)
#                    and is ended 50 seconds later, whatever hangs: what it had measured is in $OUT by then
#   PYTHON=python3   a Python with torch (CUDA), transformers, numpy and pytest
#   MEMORY_GIB=N     what the machine can have, where its memory grows as it is used and it says less
#   TINY=1           everything, small, without a GPU: on this process's memory, or what DEVICE=cuda finds; only right or wrong
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-$PWD/target/gpu-results}
parts=${PARTS:-tests driver engine}
seconds=${SECONDS_MAX:-180}

tiny=()
if [ -n "${TINY:-}" ]; then
    tiny=(--tiny)
elif ! nvidia-smi -L >/dev/null 2>&1 && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    echo "bench-gpu: skipped: no NVIDIA GPU on this machine"
    exit 0
fi

# A toolchain builds what the tree says; without one, what was carried is run. A rehearsal runs what would be carried.
if [ -z "${TINY:-}" ] && command -v cargo >/dev/null; then
    make gpu-pack
elif ! compgen -G '.gpu/turnkv-*.whl' >/dev/null || [ ! -x .gpu/gpu ]; then
    echo "error: neither cargo nor a whole .gpu is here: make gpu-pack on a machine with a toolchain, and carry .gpu" >&2
    exit 1
fi

# A device that hangs takes whoever waits for it along: nothing but SIGKILL ends that.
within=(timeout --kill-after=10 "$((seconds + 40))")
mkdir -p "$out"
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
# The wheel has the server in it.
"${PYTHON:-python3}" -m zipfile -e .gpu/turnkv-*.whl "$data/package"
export OUT=$out PYTHONPATH=$data/package TURNKV_SERVER=$data/package/turnkv/_bin/turnkv
chmod +x "$TURNKV_SERVER"
failed=0
for part in $parts; do
    case $part in
    tests)
        "${within[@]}" benches/gpu/run.sh --tests 2>&1 | tee "$out/tests.txt" || failed=1
        ;;
    driver)
        "${within[@]}" .gpu/gpu --server "$TURNKV_SERVER" --dir "$data" --rounds 5 --total-mib 256 --seconds "$seconds" \
            --json "$out/driver.json" ${tiny[@]+"${tiny[@]}" --device "${DEVICE:-host}"} 2>&1 | tee "$out/driver.md" || failed=1
        ;;
    engine)
        "${within[@]}" benches/gpu/run.sh --seconds "$seconds" ${tiny[@]+"${tiny[@]}"} 2>&1 | tee "$out/engine.md" || failed=1
        ;;
    *)
        echo "error: PARTS is some of \"tests driver engine\", not \"$part\"" >&2
        exit 1
        ;;
    esac
done
exit "$failed"
