#!/bin/bash
# The verbs engine's tests over a software NIC, in virtual machines (vm.sh says what that needs):
#   1. the suite that every engine passes, both ends in one process;
#   2. two processes in one machine: whole sessions, a forged key, a closed end, a killed client;
#   3. the same with the two processes in two machines;
#   4. the real server and its clients: whole sessions, killed ends, forged keys;
#   5. the server in one machine, its client in another;
#   6. a client's GPU whose memory the NIC reads and writes itself: CUDA's driver is a library over memfds, and the NIC's dma-bufs are
#      mappings of these (dmabuf.c). With them, without them, and with a NIC that cannot get at what it knows. Needs a C and a C++ compiler.
#   tests/rdma/run.sh [suite] [processes] [machines] [server] [apart] [device]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
say() { printf '\033[1m[rdma]\033[0m %s\n' "$*"; }
parts=("$@")
[ $# -gt 0 ] || parts=(suite processes machines server apart device)
wants() { [[ " ${parts[*]} " = *" $1 "* ]]; }

# The programs that cargo made of these tests of a package.
build() {
    cargo test --locked --package "$@" --no-run --message-format=json 2>/dev/null \
        | python3 -c 'import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["profile"]["test"]:
        print(made["executable"])'
}
say "building the tests"
suite=$(build turnkv-transfer --lib)
processes=$(build turnkv-transfer --test two_processes)
[ -x "$suite" ] && [ -x "$processes" ] || { echo "the tests could not be built: cargo test -p turnkv-transfer --no-run" >&2; exit 1; }
vm=tests/rdma/vm.sh

if wants suite; then
    say "the suite of all engines, in a machine with a software NIC"
    $vm -t 1500 -e TURNKV_RDMA= -- "$suite" --test-threads=1 fabric::verbs
fi
if wants processes; then
    say "two processes in one machine"
    $vm -t 900 -e TURNKV_RDMA= -- "$processes" --test-threads=1 verbs::
fi
if wants machines; then
    say "two machines"
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    work=$(mktemp -d)
    trap 'kill -- "-$clients" 2>/dev/null || true; rm -rf "$work"' EXIT
    # The clients' machine, once the server's card is there: its programs fail where a test kills them, are started again, and
    # are ended when the server's machine is done.
    until_there="until ss -ltn | grep -q '127.0.0.1:$port '; do sleep 0.2; done"
    TMPDIR=$work setsid bash -c "$until_there; exec \"\$@\"" clients \
        $vm -t 1200 -m 1024 -l -n "connect:$port" -i 10.99.0.2/24 -e TURNKV_RDMA= -e TURNKV_TEST_SERVER=10.99.0.1:7070 \
        -- "$processes" --ignored --exact client_process >"$work/log" 2>&1 &
    clients=$!
    $vm -t 1200 -n "listen:$port" -i 10.99.0.1/24 -e TURNKV_RDMA= -e TURNKV_CLIENTS=10.99.0.1:7070 \
        -- "$processes" --test-threads=1 verbs:: \
        || { say "the clients' machine said:"; tail -40 "$work/log"; exit 1; }
fi
if wants server || wants apart || wants device; then
    binaries=${CARGO_TARGET_DIR:-$root/target}/debug
    cargo build --locked --quiet --package turnkv
    cargo build --locked --quiet --package turnkv-tests --bin victim
    bare=$(mktemp -d)
    trap 'kill -- "-${clients:-}" "-${apart:-}" 2>/dev/null || true; rm -rf "${work:-}" "$bare"' EXIT
    # All of it is memory of the machine: what debuggers read stays here.
    for program in turnkv victim; do strip --strip-debug -o "$bare/$program" "$binaries/$program"; done
    for test in fabrics fabrics_hostile; do strip --strip-debug -o "$bare/$test" "$(build turnkv-tests --test $test)"; done
fi
if wants server; then
    say "the server and its clients in one machine"
    for test in fabrics fabrics_hostile; do
        $vm -m 3072 -t 900 -e TURNKV_RDMA= -e TURNKV_SERVER=/test/turnkv -f "$bare/turnkv" -f "$bare/victim" \
            -- "$bare/$test" --test-threads=1 --nocapture
    done
fi
if wants apart; then
    say "the server in one machine, its client in another"
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    printf '%s\n' 'listen = "unix:/tmp/turnkv.sock"' 'tcp = "10.99.0.1:7411"' '[dram]' 'bytes = "256MiB"' 'lock = false' \
        '[tls]' 'insecure = true' '[access]' 'plain = "operator"' '[remote]' 'fabrics = ["verbs"]' >"$bare/turnkv.toml"
    TMPDIR=$bare setsid $vm -m 1536 -t 600 -n "listen:$port" -i 10.99.0.1/24 -e TURNKV_LOG=info -f "$bare/turnkv.toml" \
        -- "$bare/turnkv" serve --config /test/turnkv.toml >"$bare/log" 2>&1 &
    apart=$!
    until ss -ltn | grep -q "127.0.0.1:$port "; do kill -0 $apart || { cat "$bare/log"; exit 1; }; sleep 0.2; done
    $vm -m 1536 -t 400 -n "connect:$port" -i 10.99.0.2/24 -e TURNKV_RDMA= -e TURNKV_AT=10.99.0.1:7411 \
        -- "$bare/fabrics" --ignored --exact --nocapture sessions_with_another_machine \
        || { say "the server's machine said:"; tail -40 "$bare/log"; exit 1; }
    kill -- "-$apart" 2>/dev/null || true
fi
if wants device; then
    say "a client's GPU and the NIC"
    strip --strip-debug -o "$bare/device_direct" "$(build turnkv-tests --test device_direct)"
    c++ -std=c++17 -O1 -shared -fPIC -Wno-unknown-pragmas -U_FORTIFY_SOURCE server/transfer/tests/kernels/libcuda.cpp \
        -o "$bare/libcuda.so.1"
    cc -O1 -Wall -shared -fPIC tests/rdma/dmabuf.c -o "$bare/dmabuf.so"
    for way in direct host broken; do
        with=(-e TURNKV_DEVICE_WAY=$way)
        [ $way = host ] || with+=(-e LD_PRELOAD=/test/dmabuf.so)
        [ $way != broken ] || with+=(-e TEST_DMABUF_BROKEN=1)
        $vm -m 2048 -t 900 -e TURNKV_RDMA= -e TURNKV_SERVER=/test/turnkv -e LD_LIBRARY_PATH=/test:/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu \
            "${with[@]}" -f "$bare/turnkv" -f "$bare/libcuda.so.1" -f "$bare/dmabuf.so" -- "$bare/device_direct" --test-threads=1 --nocapture
    done
fi
say "all of it passed"
