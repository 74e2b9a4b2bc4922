#!/usr/bin/env bash
# All GPU benches: `make bench-gpu`. Skips with one line where no GPU is; builds into .gpu where there is a toolchain, else runs
# what was carried there.
#   OUT=DIR          where results go (target/gpu-results)
#   PARTS="driver"   only the Rust bench; "engine": only the Python ones; unset or empty: both
#   SECONDS_MAX=N    each half leaves out what it has not begun after so long (180: both end within 8 minutes; 400 for one half)
#                    and is ended 50 seconds later, whatever hangs: what it had measured is in $OUT by then
#   PYTHON=python3   a Python with torch (CUDA), transformers and numpy
#   MEMORY_GIB=N     what the machine can have, where its memory grows as it is used and it says less
#   TINY=1           everything, small, without a GPU: on this process's memory, or what DEVICE=cuda finds; only right or wrong
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-$PWD/target/gpu-results}
parts=${PARTS:-driver engine}
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
elif [ ! -x .gpu/turnkv ] || [ ! -x .gpu/gpu ]; then
    echo "error: neither cargo nor .gpu is here: make gpu-pack on a machine with a toolchain, and carry .gpu" >&2
    exit 1
fi

# A device that hangs takes whoever waits for it along: nothing but SIGKILL ends that.
within=(timeout --kill-after=10 "$((seconds + 40))")
mkdir -p "$out"
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
failed=0
for part in $parts; do
    case $part in
    driver)
        "${within[@]}" .gpu/gpu --server .gpu/turnkv --dir "$data" --rounds 5 --total-mib 256 --seconds "$seconds" \
            --json "$out/driver.json" ${tiny[@]+"${tiny[@]}" --device "${DEVICE:-host}"} 2>&1 | tee "$out/driver.md" || failed=1
        ;;
    engine)
        wheel=$(ls -t .gpu/turnkv-*.whl 2>/dev/null | head -1 || true)
        [ -n "$wheel" ] || { echo "error: no wheel in .gpu: make gpu-pack" >&2; exit 1; }
        OUT=$out TURNKV_SERVER=$PWD/.gpu/turnkv TURNKV_WHEEL=$PWD/$wheel "${within[@]}" benches/gpu/run.sh --seconds "$seconds" \
            ${tiny[@]+"${tiny[@]}"} 2>&1 \
            | tee "$out/engine.md" || failed=1
        ;;
    *)
        echo "error: PARTS is \"driver\", \"engine\" or both, not \"$part\"" >&2
        exit 1
        ;;
    esac
done
exit "$failed"
