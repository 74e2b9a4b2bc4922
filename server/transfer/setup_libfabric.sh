#!/bin/bash
# Gets libfabric for the tests and the bench, without root: into .tools/libfabric at the root of the tree, from Debian's packages.
#   server/transfer/setup_libfabric.sh            then TURNKV_LIBFABRIC=.tools/libfabric cargo test ... fabric::libfabric
# Nothing is installed and nothing outside the tree is changed. Needs apt-get, dpkg and a package mirror that apt knows; where
# they are missing it says so, and the tests that need the library are left out by name.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$root/.tools/libfabric
say() { printf '\033[1m[libfabric]\033[0m %s\n' "$*"; }
fail() { printf '\033[1m[libfabric] not here:\033[0m %s\n' "$*" >&2; exit 1; }

# Debian 12 (bookworm), amd64: package, version, SHA-256 of the package's file. libfabric1, and what it is linked to that a
# small machine may lack.
packages="
libfabric1 1.17.0-3 1df0b3acb9a55e43152621015f941457fe63cb9866868f2c2df2c20d34604a22
librdmacm1 44.0-2 16b18625834371d023b81477823074ea0d34c478d58dbef3f01107984f47d034
libibverbs1 44.0-2 35054815259fee46173240254246d03b673a5cd5c528aaac96fd15ac428a8d59
ibverbs-providers 44.0-2 3c9907fd96a4ae7effb5faa178bd3648344a521f6bcca2c23c9f2dd214cf1192
libpsm2-2 11.2.185-2 38ad6400906ae84345362aa366c7a1900e9cbcce06fb6ed35bf5dab414ec2939
libpsm-infinipath1 3.3+20.604758e7-6.2 872325ca09249b99e7cfe9e41da438b31084f32f969f80f85813482a4ae2ff37
libnl-3-200 3.7.0-0.2+b1 d1fc3e9eb8e79b4c96b0a64c3d8c9e068ae2f665cab71bd19f417ffd0453a890
libnl-route-3-200 3.7.0-0.2+b1 0fdcc425ae2982788c085c76a7cb0eda3e3db99d41bd1ce56082ee18e9f1e21f
libnuma1 2.0.16-1 639e1ab6bd66ead40db8a22c332d7199679fa22db261cac34444eb8eb4c17dda
libatomic1 12.2.0-14+deb12u1 fbd4e154a6b444229ea002cc209df099209c0adc09102e5fd21239a3d2b55e2d
"

stamp_now=$(sha256sum "$0" | cut -d' ' -f1)
stamp=$target/.stamp
fresh() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$stamp_now" ] && [ -e "$target/libfabric.so.1" ]; }
if fresh; then say "up to date: $target"; exit 0; fi
for tool in apt-get dpkg sha256sum; do command -v $tool >/dev/null || fail "no $tool: this is not Debian"; done
[ "$(dpkg --print-architecture)" = amd64 ] || fail "the packages that are pinned here are for amd64"

mkdir -p "$root/.tools"
exec 9>"$root/.tools/.libfabric.lock"
flock 9
if fresh; then exit 0; fi
work=$(mktemp -d "$root/.tools/.libfabric.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Root's apt downloads as a user of its own, who must be able to write there.
chmod 755 "$work"
mkdir "$work/packages" "$work/tree"
if id _apt >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then chown _apt "$work/packages"; fi

say "downloading libfabric 1.17.0 and what it is linked to (2 MB)"
names=$(awk 'NF { print $1 "=" $2 }' <<<"$packages")
download() { (cd "$work/packages" && apt-get -qq download $names) 2>"$work/words"; }
# An apt that never looked at its mirror knows no versions; one that may, looks.
download || { [ "$(id -u)" = 0 ] && apt-get -qq update && download; } \
    || fail "apt-get download: $(tail -1 "$work/words")"
while read -r name version digest; do
    [ -n "$name" ] || continue
    file=$(find "$work/packages" -name "${name}_*_amd64.deb")
    [ "$(sha256sum "$file" | cut -d' ' -f1)" = "$digest" ] || fail "$name $version is not the package that is pinned"
    dpkg -x "$file" "$work/tree"
done <<<"$packages"

# One folder, with the names that they are linked by.
rm -rf "$target.new"
mkdir "$target.new"
find "$work/tree" -name '*.so.*' -not -path '*/libibverbs/*' -not -path '*/rsocket/*' -exec cp -P {} "$target.new" \;
ln -sf libpsm_infinipath.so.1.16 "$target.new/libpsm_infinipath.so.1"
missing=$(LD_LIBRARY_PATH=$target.new ldd "$target.new/libfabric.so.1" | awk '/not found/ { print $1 }')
[ -z "$missing" ] || fail "it is linked to $missing, which no pinned package has"
echo "$stamp_now" >"$target.new/.stamp"
rm -rf "$target"
mv "$target.new" "$target"
say "ready: $(du -sh "$target" | cut -f1) in $target"
