#!/bin/bash
# Gets a store that speaks S3 and keeps its objects on disk, for the tests that kill it: s3s-fs, into .tools/s3s at the root of the
# tree, built out of its crate.
#   tests/setup_s3.sh            then cargo test ... --test cluster_kills
# moto, which Python's tests have, keeps objects in memory: killed, it has lost what it had said it keeps. Needs cargo and its
# registry; where that is missing it says so, and the tests that need the store are left out by name.
set -euo pipefail

version=0.14.1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
target=$root/.tools/s3s
say() { printf '\033[1m[s3]\033[0m %s\n' "$*"; }
fail() { printf '\033[1m[s3] not here:\033[0m %s\n' "$*" >&2; exit 1; }

stamp_now=$(sha256sum "$0" | cut -d' ' -f1)
stamp=$target/.stamp
fresh() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ] && [ -x "$target/bin/s3s-fs" ]; }
if fresh; then say "up to date: $target"; exit 0; fi

mkdir -p "$root/.tools"
exec 9>"$root/.tools/.s3s.lock"
flock 9
if fresh; then exit 0; fi
work=$(mktemp -d "$root/.tools/.s3s.XXXXXX")
trap 'rm -rf "$work"' EXIT

say "building s3s-fs $version (about a minute)"
CARGO_TARGET_DIR=$work/target CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root "$work/tree" \
  --version "$version" --features binary s3s-fs >"$work/words" 2>&1 || fail "cargo install s3s-fs: $(tail -3 "$work/words")"
echo "$stamp_now" >"$work/tree/.stamp"
rm -rf "$target"
mv "$work/tree" "$target"
say "ready: $(du -sh "$target" | cut -f1) in $target"
