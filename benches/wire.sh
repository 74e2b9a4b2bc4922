#!/usr/bin/env bash
# `remote` and `pull` over a wire of so many Gbit/s: `make bench-wire`. The wire is the loopback of a network namespace of its own, held
# to that rate by tc. An unbounded loopback is as fast as the cores copy, so there both ends' copies and checksums compete with the bare
# streams for the same cores; over a wire it shows whether a pool fills it. Wants root and iproute2; where these are not, one line says so.
#   RATES="10 25"    Gbit/s
#   ROUNDS=5         rounds of each
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

release=${CARGO_TARGET_DIR:-target}/release
name=turnkv-wire-$$

if [ "$(id -u)" != 0 ] || ! command -v tc >/dev/null || ! ip netns add "$name" 2>/dev/null; then
    echo "bench-wire: skipped: a shaped network namespace wants root, ip and tc (Debian: iproute2)"
    exit 0
fi
trap 'ip netns delete "$name"' EXIT
inside() { ip netns exec "$name" "$@"; }
inside ip link set lo up

for rate in ${RATES:-10 25}; do
    inside tc qdisc replace dev lo root tbf rate "${rate}gbit" burst 8mb latency 20ms
    for bench in "remote" "remote --tls" "pull"; do
        echo "## $bench, a wire of $rate Gbit/s"
        # shellcheck disable=SC2086 # the bench's options are words
        inside "$release"/$bench --server "$release/turnkv" --rounds "${ROUNDS:-5}"
    done
done
