#!/bin/bash
# Gets etcd for the tests, without root: into .tools/etcd at the root of the tree, out of Debian's packages.
#   tests/setup_etcd.sh            then TURNKV_ETCD=.tools/etcd cargo test ... --test cluster_etcd
# Nothing is installed and nothing outside the tree is changed. Needs apt-get, dpkg and a package index that apt knows; where they
# are missing it says so, and the tests that need etcd are left out by name.
set -euo pipefail

version=3.4.23

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
target=$root/.tools/etcd
say() { printf '\033[1m[etcd]\033[0m %s\n' "$*"; }
fail() { printf '\033[1m[etcd] not here:\033[0m %s\n' "$*" >&2; exit 1; }

stamp_now=$(sha256sum "$0" | cut -d' ' -f1)
stamp=$target/.stamp
fresh() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ] && [ -x "$target/etcd" ]; }
if fresh; then say "up to date: $target"; exit 0; fi

mkdir -p "$root/.tools"
exec 9>"$root/.tools/.etcd.lock"
flock 9
if fresh; then exit 0; fi
work=$(mktemp -d "$root/.tools/.etcd.XXXXXX")
trap 'rm -rf "$work"' EXIT

command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "apt-get and dpkg are Debian's"
say "downloading etcd $version (13 MB)"
(cd "$work" && apt-get -qq download etcd-server etcd-client >words 2>&1) || fail "apt-get download: $(tail -1 "$work/words")"
for package in "$work"/*.deb; do dpkg -x "$package" "$work/tree" || fail "dpkg -x $package"; done

rm -rf "$target.new"
mkdir "$target.new"
cp "$work/tree/usr/bin/etcd" "$work/tree/usr/bin/etcdctl" "$target.new"
found=$("$target.new/etcd" --version 2>&1 | sed -n 's/^etcd Version: //p')
say "etcd $found"
echo "$stamp_now" >"$target.new/.stamp"
rm -rf "$target"
mv "$target.new" "$target"
say "ready: $(du -sh "$target" | cut -f1) in $target"
