#!/bin/bash
# Builds the abi3 wheel `turnkv` and installs it into .venv; does nothing that is done already.
#   engine-plugins/install_wheel.sh [--dev]        --dev: cargo's dev profile, quicker to build
# The wheel stays in target/wheels (of CARGO_TARGET_DIR, if set): pip install it wherever an engine runs, Python 3.10+.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
venv=$root/.venv
target=${CARGO_TARGET_DIR:-$root/target}
profile=--release
if [ "${1:-}" = --dev ]; then profile="--profile=dev"; fi

say() { printf '\033[1m[python]\033[0m %s\n' "$*"; }
fail() { printf '\033[1m[python] failed:\033[0m %s\n' "$*" >&2; exit 1; }

[ -x "$venv/bin/maturin" ] || fail "no environment yet: run engine-plugins/setup_env.sh first"
mkdir -p "$target/wheels"
exec 9>"$target/.wheel.lock"
flock 9

say "building the wheel (cargo builds what has changed)"
wheels=$(mktemp -d "$target/wheels/.new-XXXXXX")
trap 'rm -rf "$wheels"' EXIT
"$venv/bin/maturin" build "$profile" --manifest-path "$here/Cargo.toml" --target-dir "$target" --out "$wheels" \
    --interpreter "$venv/bin/python" --quiet || fail "maturin could not build the wheel"
wheel=$(ls "$wheels"/turnkv-*.whl)

# Wheels hold time stamps and serial numbers: compare the package in them, not the files themselves.
content=$("$venv/bin/python" - "$wheel" <<'PYTHON'
import hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = sorted(name for name in wheel.namelist() if name.startswith("turnkv/"))
print(hashlib.sha256(b"".join(name.encode() + wheel.read(name) for name in names)).hexdigest())
PYTHON
)
stamp=$venv/.turnkv-wheel
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$content" ] || ! "$venv/bin/python" -c 'import turnkv' 2>/dev/null; then
    rm -f "$stamp"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall "$wheel" \
        || fail "pip could not install $wheel"
    "$venv/bin/python" -c 'import turnkv' || fail "the wheel does not load"
    echo "$content" >"$stamp"
    say "installed $(basename "$wheel") ($(du -h "$wheel" | cut -f1))"
else
    say "the installed wheel is up to date"
fi
mv -f "$wheel" "$target/wheels/"
