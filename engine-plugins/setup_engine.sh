#!/bin/bash
# Makes the Python environment of one real engine, for the tests: .engines/NAME at the root of the tree, on top of .venv.
#   engine-plugins/setup_engine.sh vllm | sglang | transformers-5.17
# torch is .venv's in all of them: an environment holds only what its engine needs beyond that (env/NAME.txt, pinned).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
name=${1:-}
say() { printf '\033[1m[%s]\033[0m %s\n' "$name" "$*"; }
fail() { printf '\033[1m[%s] failed:\033[0m %s\n' "$name" "$*" >&2; exit 1; }

case $name in
    vllm) size="0.5 GB to download, 1.4 GB on disk"; works='import vllm, vllm.config' ;;
    sglang) size="0.2 GB to download, 0.7 GB on disk"
        works="import sys; sys.path.insert(0, '$here/tests/sglang/harness'); import stand_ins; stand_ins.install()
import sglang.srt.mem_cache.hicache_storage" ;;
    transformers-5.17) size="12 MB to download"; works='import transformers; assert transformers.__version__ == "5.17.0"' ;;
    *) echo "usage: $0 vllm | sglang | transformers-5.17" >&2; exit 2 ;;
esac
base=$root/.venv
env=$root/.engines/$name
requirements=$here/env/$name.txt
[ -x "$base/bin/python" ] || fail "no $base yet: run engine-plugins/setup_env.sh first"

stamp_now=$({ "$base/bin/python" -V; cat "$requirements" "$base/.turnkv-stamp" "$0"; } | sha256sum | cut -d' ' -f1)
stamp=$env/.turnkv-stamp
fresh() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ] && "$env/bin/python" -c '' 2>/dev/null; }
if fresh; then say "environment is up to date: $env"; exit 0; fi
mkdir -p "$root/.engines"
exec 9>"$root/.engines/.$name.lock"
flock 9
if fresh; then exit 0; fi

if [ "$name" = vllm ] && ! ldconfig -p | grep -q libnuma.so.1; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "vLLM needs libnuma; run: sudo apt-get install libnuma1"
    say "vLLM needs libnuma: apt-get install libnuma1"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libnuma1 >/dev/null; } \
        || fail "apt-get install libnuma1 did not work; install it by hand"
fi
# SGLang compiles its page hash when it first needs it: a C++ compiler, OpenSSL's headers and Python's own.
compiles() { printf '#include <%s>\n' "$1" | c++ -fsyntax-only -x c++ -I "$2" - 2>/dev/null; }
if [ "$name" = sglang ]; then
    include=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    missing=""
    command -v c++ >/dev/null || missing="g++"
    compiles openssl/evp.h /usr/include || missing="$missing libssl-dev"
    [ -f "$include/Python.h" ] || missing="$missing python3-dev"
    if [ -n "$missing" ]; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null \
            || fail "SGLang compiles a part of itself; run: sudo apt-get install $missing"
        say "SGLang compiles a part of itself: apt-get install $missing"
        # shellcheck disable=SC2086 # several packages
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null; } \
            || fail "apt-get install $missing did not work; install it by hand"
    fi
fi
say "installing $(grep -c == "$requirements") pinned packages: $size, into $env; about a minute, once"
available=$(df --output=avail -k "$root" | tail -1)
[ "$available" -gt 2500000 ] || fail "needs 2.5 GB free in $root, there are $((available / 1000000)) GB"
rm -rf "$env"
"$base/bin/python" -m venv --without-pip "$env" || fail "could not make $env"
site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# What the environment lacks, torch and turnkv among it, is .venv's: its packages come after the environment's own.
"$base/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/base.pth"
bar=off
if [ -t 1 ]; then bar=on; fi
"$base/bin/python" -m pip --python "$env/bin/python" install --disable-pip-version-check --no-deps --ignore-installed \
    --no-warn-conflicts --progress-bar "$bar" -r "$requirements" 2>&1 \
    | sed -u -n -e '/^ *Downloading .*MB/p' -e '/^Installing/p' -e '/━/p' -e '/[Ee][Rr][Rr][Oo][Rr]/p' -e '/WARNING: Retry/p' \
    || fail "pip could not install $requirements (messages above); run this again to go on"
message=$("$env/bin/python" -c "$works" 2>&1) || fail "an installed package does not load: $message"
echo "$stamp_now" >"$stamp"
say "ready: $(du -sh "$env" | cut -f1) in $env"
