#!/bin/bash
# Makes the Python environment of the demo and the tests: .venv at the root of the tree, pinned, reused while it matches.
#   engine-plugins/setup_env.sh            TURNKV_TORCH=full installs torch with all its GPU libraries (3 GB more)
# Downloads go through pip as it is configured. Nothing outside the tree is changed, except that root on a Debian without
# python3-venv gets that package.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
venv=$root/.venv
requirements=$here/env/requirements.txt
flavour=${TURNKV_TORCH:-small}
python=${PYTHON:-python3}

say() { printf '\033[1m[python]\033[0m %s\n' "$*"; }
fail() { printf '\033[1m[python] failed:\033[0m %s\n' "$*" >&2; exit 1; }

command -v "$python" >/dev/null || fail "no $python; on Debian: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "the pinned packages need Python 3.11 or newer, this is $("$python" -V); set PYTHON=/path/to/python3.11"

stamp_now=$({ "$python" -V; echo "$flavour"; cat "$requirements" "$here/env/gpu_stand_ins.py"; } | sha256sum | cut -d' ' -f1)
stamp=$venv/.turnkv-stamp
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    say "environment is up to date: $venv"
    exit 0
fi

# Two of make's goals may ask at once: the second waits, then finds the first one's work.
mkdir -p "$root/target"
exec 9>"$root/target/.venv.lock"
flock 9
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ]; then exit 0; fi

if [ "$flavour" = full ]; then size="3.3 GB to download, 6 GB on disk"; else size="0.6 GB to download, 1.7 GB on disk"; fi
say "installing $(grep -c == "$requirements") pinned packages (torch 2.13.0, transformers 5.23.0, maturin, pytest, ...): $size, into"
say "$venv; one to three minutes, once"
available=$(df --output=avail -k "$root" | tail -1)
need=$([ "$flavour" = full ] && echo 10000000 || echo 3000000)
[ "$available" -gt "$need" ] || fail "needs $((need / 1000000)) GB free in $root, there are $((available / 1000000)) GB"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null \
        || fail "this Python lacks ensurepip; run: sudo apt-get install python3-venv"
    say "this Python lacks ensurepip: apt-get install python3-venv"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null \
        || fail "apt-get install python3-venv did not work; install it by hand"
fi
if ! "$venv/bin/python" -c '' 2>/dev/null; then rm -rf "$venv"; fi
rm -f "$stamp"
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || fail "could not make $venv"

bar=off
if [ -t 1 ]; then bar=on; fi
"$venv/bin/python" -m pip install --disable-pip-version-check --no-deps --progress-bar "$bar" -r "$requirements" 2>&1 \
    | sed -u -n -e '/^ *Downloading .*MB/p' -e '/^Installing/p' -e '/━/p' -e '/[Ee][Rr][Rr][Oo][Rr]/p' -e '/WARNING: Retry/p' \
    || fail "pip could not install $requirements (messages above); run this again to go on"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
works() { "$venv/bin/python" -c 'import torch; assert (torch.ones(4, 4) @ torch.ones(4, 4)).sum() == 64' 2>&1; }
if [ "$flavour" != full ]; then
    say "building stand-ins for the GPU libraries that nothing here calls (saves a 2.7 GB download)"
    "$venv/bin/python" "$here/env/gpu_stand_ins.py" "$site" || true
fi
if ! message=$(works); then
    [ "$flavour" = full ] || { say "torch does not load with stand-ins: ${message##*$'\n'}"; say "installing the real libraries: 2.7 GB"; }
    find "$site/nvidia" -name '*.so.*' -size -200k -delete 2>/dev/null || true
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar "$bar" "$(grep ^torch== "$requirements")" \
        || fail "pip could not install torch's GPU libraries"
    message=$(works) || fail "torch does not load: $message"
fi
"$venv/bin/python" -c 'import transformers, pytest' || fail "an installed package does not load (message above)"
echo "$stamp_now" >"$stamp"
say "ready: $(du -sh "$venv" | cut -f1) in $venv"
