#!/bin/bash
# Runs a program in a virtual machine that has an RDMA device: rxe, the kernel's RoCE over Ethernet in software. For machines
# without a NIC or without InfiniBand in their kernel.
#   tests/rdma/vm.sh [options] -- PROGRAM [ARGUMENTS]       its output and exit status are the program's
#     -e NAME=VALUE    environment of the program            -f FILE     another program to bring along, into /test
#     -m MIB           memory (2048)                         -t SECONDS  time limit (600): status 124
#     -n listen:PORT | connect:PORT   joins two machines by their network cards, over a TCP port of 127.0.0.1
#     -i ADDRESS/BITS  address of the card (10.99.0.1/24)    -l          run the program again and again, until told to stop
#
# What it needs: qemu-system-x86_64, a static busybox, cpio and iproute2's `rdma` (apt-get install qemu-system-x86 busybox-static
# cpio iproute2); once, apt-get and dpkg, for Debian's kernel and rdma-core (75 MB, unpacked into .tools/rdma-vm; nothing is
# installed, no root). The kernel is the mirror's newest of this Debian: apt checks its signature, no version is pinned, because
# mirrors keep only the newest. What it does not do: it is no NIC. rxe checks keys, bounds, states and retries like one, in
# software; it says nothing about speed, and two of its devices in one kernel cannot talk, so a second host is a second machine.
#
# Without KVM the processor is emulated: some 50 MB/s, and a test takes seconds where it would take milliseconds.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
die() { printf '\033[1m[rdma vm]\033[0m %s\n' "$*" >&2; exit 125; }

memory=2048 limit=600 net='' address=10.99.0.1/24 again='' envs=() files=()
while getopts 'e:f:m:t:n:i:l' option; do case $option in
    e) envs+=("$OPTARG") ;; f) files+=("$OPTARG") ;; m) memory=$OPTARG ;; t) limit=$OPTARG ;; n) net=$OPTARG ;;
    i) address=$OPTARG ;; l) again=1 ;; *) die "usage: see the head of $0" ;;
esac; done
shift $((OPTIND - 1))
[ $# -gt 0 ] || die "no program is named"
for tool in qemu-system-x86_64 busybox cpio rdma; do
    command -v $tool >/dev/null || die "$tool is missing: apt-get install qemu-system-x86 busybox-static cpio iproute2"
done
[ "$(uname -m)" = x86_64 ] || die "the kernel that is booted is for x86_64"
cache=$root/.tools/rdma-vm
triplet=x86_64-linux-gnu

# ---- once: the kernel and rdma-core ----
fill_cache() {
    local new=$cache.new kernel version
    rm -rf "$new"
    mkdir -p "$new"/{packages,kernel,user}
    if id _apt >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then chown _apt "$new/packages"; fi
    kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -1)
    [ -n "$kernel" ] || die "apt knows no linux-image-amd64: apt-get update"
    printf '\033[1m[rdma vm]\033[0m downloading %s and rdma-core (75 MB, once)\n' "$kernel" >&2
    (cd "$new/packages" && apt-get -qq download "$kernel" libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200 2>/dev/null) \
        || die "apt-get download did not work: is there a mirror?"
    for package in "$new"/packages/*.deb; do
        case $package in
            */linux-image-*) dpkg -x "$package" "$new/kernel" ;;
            *) dpkg -x "$package" "$new/user" ;;
        esac
    done
    version=$(basename "$new"/kernel/lib/modules/*)
    cp "$new/kernel/boot/vmlinuz-$version" "$new/vmlinuz"
    find "$new/kernel" -name '*.ko.xz' -exec xz -d {} +
    busybox depmod -b "$new/kernel" "$version"
    # Only the modules that are used, with those that they need.
    local base=$new/base dep=$new/kernel/lib/modules/$version/modules.dep
    mkdir -p "$base"/{bin,proc,sys,dev,tmp,run,etc/libibverbs.d,test} "$base/lib/modules/$version"
    for module in rdma_rxe ib_uverbs dummy crc32_generic crc32c_generic virtio_pci virtio_net; do
        grep -E "(^|/)$module\.ko:" "$dep" || true
    done | tr -d : | tr ' ' '\n' | sort -u | while read -r file; do
        [ -n "$file" ] || continue
        mkdir -p "$base/lib/modules/$version/${file%/*}"
        cp "$new/kernel/lib/modules/$version/$file" "$base/lib/modules/$version/$file"
    done
    busybox depmod -b "$base" "$version"
    cp "$(command -v busybox)" "$base/bin/busybox"
    echo 'root:x:0:0:root:/:/bin/sh' >"$base/etc/passwd"
    echo 'driver rxe' >"$base/etc/libibverbs.d/rxe.driver"
    (cd "$base" && find . | cpio -o -H newc --quiet -R 0:0) >"$new/base.cpio"
    rm -rf "$new/kernel" "$new/packages" "$base"
    sha256sum "${BASH_SOURCE[0]}" | cut -d' ' -f1 >"$new/.stamp"
    rm -rf "$cache"
    mv "$new" "$cache"
}
mkdir -p "$root/.tools"
exec 9>"$root/.tools/.rdma-vm.lock"
flock 9
stamp=$(sha256sum "${BASH_SOURCE[0]}" | cut -d' ' -f1)
[ "$(cat "$cache/.stamp" 2>/dev/null)" = "$stamp" ] || fill_cache
exec 9>&-

# ---- this run's part of the initial file system: the programs, and every library that they are linked to ----
work=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{bin,test}
user=$cache/user/usr/lib/$triplet
put() {
    mkdir -p "$tree/$(dirname "$2")"
    cp -L "$1" "$tree/$2"
    { LD_LIBRARY_PATH=$user ldd "$1" 2>/dev/null || true; } \
        | sed -n 's/.*=> \(\/[^ ]*\) (.*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' | while read -r library; do
        case $library in "$cache"/*) place=/usr/lib/$triplet/$(basename "$library") ;; *) place=$library ;; esac
        [ -e "$tree$place" ] || { mkdir -p "$tree$(dirname "$place")"; cp -L "$library" "$tree$place"; }
    done
}
put "$(command -v rdma)" bin/rdma
put "$user/libibverbs.so.1" "usr/lib/$triplet/libibverbs.so.1"
put "$user/libibverbs/librxe-rdmav34.so" "usr/lib/$triplet/libibverbs/librxe-rdmav34.so"
# glibc loads it by itself when a thread is cancelled.
libgcc=$(ldconfig -p | sed -n 's/.*libgcc_s.so.1.* => //p' | head -1)
[ -z "$libgcc" ] || put "$libgcc" "usr/lib/$triplet/libgcc_s.so.1"
program=$1
shift
put "$program" "test/$(basename "$program")"
for file in "${files[@]+"${files[@]}"}"; do put "$file" "test/$(basename "$file")"; done
{
    for variable in "${envs[@]+"${envs[@]}"}"; do printf 'export %q\n' "$variable"; done
    command_line=$(printf '%q ' "/test/$(basename "$program")" "$@")
    if [ -n "$again" ]; then echo "while :; do $command_line; sleep 0.2; done"; else echo "exec $command_line"; fi
} >"$tree/test/run.sh"
cat >"$tree/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs -o size=90% shm /dev/shm; mount -t tmpfs -o size=50% tmp /tmp
end() { echo "status $1" >/dev/ttyS1; poweroff -f; }
for word in $(cat /proc/cmdline); do case $word in vm.*=*) eval "vm_${word#vm.}";; esac; done
for module in crc32_generic crc32c_generic rdma_rxe; do modprobe $module 2>/dev/null; done
ip link set lo up
if [ "$vm_net" = 1 ]; then
    modprobe virtio_pci; modprobe virtio_net; card=eth0
    i=0; while [ ! -e /sys/class/net/eth0 ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
else
    modprobe dummy numdummies=0; card=rdma0; ip link add rdma0 type dummy
fi
ip link set $card mtu $vm_mtu; ip addr add $vm_addr dev $card; ip link set $card up
rdma link add rxe0 type rxe netdev $card || end 125
i=0; until [ -c /dev/infiniband/uverbs0 ] && grep -qs '0000:0000:0000:0000:0000:ffff' /sys/class/infiniband/rxe0/ports/1/gids/*; do
    sleep 0.1; i=$((i+1)); [ $i -lt 100 ] || { echo "no RDMA device came up" >/dev/ttyS2; end 125; }; done
ulimit -l unlimited; ulimit -n 65536; ulimit -c 0
cd /test; sh /test/run.sh </dev/null >/dev/ttyS2 2>&1
end $?
INIT
chmod +x "$tree/init"
(cd "$tree" && find . | cpio -o -H newc --quiet -R 0:0) >"$work/run.cpio"
cat "$cache/base.cpio" "$work/run.cpio" >"$work/initrd"

# ---- boot ----
# KVM can be there and not start a stock kernel (nested, or without the processor's help): it is tried.
kvm_works() {
    [ -w /dev/kvm ] || return 1
    # No init: the kernel ends with a panic that names it, if it came that far.
    timeout 20 qemu-system-x86_64 -accel kvm -cpu host -m 256 -nodefaults -display none -no-reboot -kernel "$cache/vmlinuz" \
        -append 'console=ttyS0 panic=-1' -serial stdio </dev/null 2>/dev/null | grep -aq 'Unable to mount root'
}
if kvm_works; then accel=(-accel kvm -cpu host); else accel=(-accel tcg,thread=multi -cpu max,la57=off); fi
machine=(-m "$memory" -smp 2 -nodefaults -display none -no-reboot -kernel "$cache/vmlinuz" -initrd "$work/initrd"
    -serial "file:$work/console" -serial "file:$work/status" -serial stdio -device virtio-rng-pci)
mtu=4200
case $net in
    '') ;;
    listen:* | connect:*)
        mtu=1500
        last=$([ "${net%%:*}" = listen ] && echo 01 || echo 02)
        machine+=(-netdev "socket,id=n0,${net%%:*}=127.0.0.1:${net#*:}" -device "virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:99:00:$last") ;;
    *) die "-n listen:PORT or connect:PORT" ;;
esac
append="console=ttyS0 panic=-1 quiet mitigations=off random.trust_cpu=on no_timer_check vm.addr=$address vm.mtu=$mtu"
[ -z "$net" ] || append+=" vm.net=1"
status=0
timeout --foreground "$limit" qemu-system-x86_64 "${accel[@]}" "${machine[@]}" -append "$append" </dev/null || status=$?
if [ "$status" = 124 ]; then
    [ -n "$again" ] || printf '\033[1m[rdma vm]\033[0m the time limit of %s s is over\n' "$limit" >&2
    exit 124
fi
code=$(tr -d '\r' <"$work/status" | sed -n 's/^status //p' | tail -1)
[ -n "$code" ] || { tail -40 "$work/console" >&2; die "the machine died; the end of its console is above"; }
exit "$code"
