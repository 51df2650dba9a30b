#!/usr/bin/env bash
# Runs a command where there are two RDMA devices, and hands back its output and its exit status.
#
#   bash tests/softroce/run.sh COMMAND [ARGUMENT...]
#
# Without RDMA hardware: boots a throw-away virtual machine with two Soft-RoCE devices and runs the command in it as root.
# The machine sees this host's file system at the same paths, so whatever is built here runs there. What it writes stays in its memory and
# is gone at the end, except below the folders of KVFERRY_VM_WRITABLE. Standard output and error come back
# separately, byte by byte. Standard input is empty.
#
# In the machine: rxe0 on v0 (10.99.0.1) and rxe1 on v1 (10.99.0.2), the ends of one cable (a veth pair), MTU 9000; IPv4 is at
# GID index 1. `tc qdisc` with netem makes loss and delay; guest/link.sh unplugs an end and plugs it in again.
#
# With RDMA hardware: set KVFERRY_RDMA_DEVICES, and the command runs here, without a virtual machine.
#
# As a runner of cargo (the path must be absolute, because cargo changes the folder):
#
#   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="bash $PWD/tests/softroce/run.sh" \
#       cargo test -p transport-rdma --features verbs --test native_verbs -- --ignored
#
# Environment:
#   KVFERRY_RDMA_DEVICES  one device or two, separated by a comma (mlx5_0,mlx5_1). Tests read the same variable; in the
#                         virtual machine it is rxe0,rxe1
#   KVFERRY_VM_TIMEOUT    seconds that the command may take                         (300)
#   KVFERRY_VM_BOOT       seconds that one boot may take                            (60)
#   KVFERRY_VM_TRIES      how often to boot before giving up                        (3)
#   KVFERRY_VM_MEMORY     the machine's memory in MiB                               (2048)
#   KVFERRY_VM_CPUS       its processors; more than 1 crashes now and then with tcg (1)
#   KVFERRY_VM_ACCEL      kvm, tcg, or auto: kvm where it works                     (auto)
#   KVFERRY_VM_WRITABLE   folders that the machine may write to, separated by colons
#   KVFERRY_VM_CACHE      where the kernel is kept                                  (~/.cache/kvferry-vm)
#   KVFERRY_VM_KERNEL     Debian packages that bring a kernel; the first one that exists is taken
#                                                                   (linux-image-6.12-amd64 linux-image-amd64)
#   KVFERRY_VM_VERBOSE    1 tells times on standard error
#
# Exit status: the command's own, or
#   124  the command took longer than KVFERRY_VM_TIMEOUT
#   125  the machine did not come up, or died under the command: says nothing about the command
#   126  a Debian package is missing on this host; the message says which
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "softroce: $*" >&2; }
tell() { [ "${KVFERRY_VM_VERBOSE:-0}" = 1 ] && say "$@"; return 0; }

if [ $# -eq 0 ]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 126
fi

if [ -n "${KVFERRY_RDMA_DEVICES:-}" ]; then
    export KVFERRY_RDMA_DEVICES
    exec "$@"
fi

timeout=${KVFERRY_VM_TIMEOUT:-300}
boot=${KVFERRY_VM_BOOT:-60}
tries=${KVFERRY_VM_TRIES:-3}
memory=${KVFERRY_VM_MEMORY:-2048}
cpus=${KVFERRY_VM_CPUS:-1}
accel=${KVFERRY_VM_ACCEL:-auto}
cache=${KVFERRY_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvferry-vm}
PATH=$PATH:/usr/sbin:/sbin

# ---- what this host must have

missing=()
for need in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio rdma:iproute2 xz:xz-utils \
    zstd:zstd objcopy:binutils flock:util-linux; do
    command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    say "packages are missing: apt-get install --no-install-recommends ${missing[*]}"
    exit 126
fi

# ---- the kernel, prepared once

kernel=$(bash "$here/kernel.sh" "$cache" "${KVFERRY_VM_KERNEL:-linux-image-6.12-amd64 linux-image-amd64}") || {
    say "there is no kernel to boot"
    exit 125
}

# ---- the folder of this run: `share` is what the machine sees of it

job=$(mktemp -d "${TMPDIR:-/tmp}/kvferry-vm.XXXXXX") || exit 125
share=$job/share
mkdir "$share"
machine=
readers=()

# Ends what this run started, and nothing else.
stop() {
    if [ -n "$machine" ]; then
        kill -9 "$machine" 2>/dev/null
        wait "$machine" 2>/dev/null
        machine=
    fi
}
cleanup() {
    stop
    [ ${#readers[@]} -eq 0 ] || kill "${readers[@]}" 2>/dev/null
    rm -rf "$job"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

printf '%s\0' "$@" >"$share/command"
pwd >"$share/folder"
printf '%s\n' "$here/guest" >"$share/guest"
KVFERRY_RDMA_DEVICES=rxe0,rxe1
export KVFERRY_RDMA_DEVICES
export -p >"$share/environment"
: >"$share/writable"

shares=(
    -fsdev "local,id=root,path=/,security_model=passthrough,readonly=on,multidevs=remap"
    -device "virtio-9p-pci,fsdev=root,mount_tag=root"
    -fsdev "local,id=job,path=$share,security_model=none"
    -device "virtio-9p-pci,fsdev=job,mount_tag=job"
)
number=0
IFS=: read -r -a folders <<<"${KVFERRY_VM_WRITABLE:-}"
for folder in "${folders[@]}"; do
    folder=$(realpath -e "$folder") || { say "KVFERRY_VM_WRITABLE names a folder that does not exist"; exit 125; }
    echo "$folder" >>"$share/writable"
    shares+=(
        -fsdev "local,id=writable$number,path=$folder,security_model=passthrough,multidevs=remap"
        -device "virtio-9p-pci,fsdev=writable$number,mount_tag=writable$number"
    )
    number=$((number + 1))
done

# ---- booting

# /dev/kvm alone does not tell: without svm or vmx it boots only kernels that were built for it.
chosen=$accel
if [ "$accel" = auto ]; then
    chosen=tcg
    if [ -w /dev/kvm ] && grep -qE '^flags.* (svm|vmx)( |$)' /proc/cpuinfo; then chosen=kvm; fi
fi

# The pc machine without its default devices. The uncompressed kernel starts at once (PVH) where tcg would have to interpret the
# decompressor. `no_timer_check`: an emulated timer is late and the kernel would give it up.
start() {
    local cpu=max engine=tcg
    case $chosen in
    kvm) engine=kvm cpu=host ;;
    *) [ "$cpus" -eq 1 ] || engine=tcg,thread=multi ;;
    esac
    qemu-system-x86_64 -M pc,usb=off,vmport=off -accel "$engine" -cpu "$cpu" -m "$memory" -smp "$cpus" \
        -nodefaults -no-user-config -display none -no-reboot -kernel "$kernel/vmlinux" -initrd "$kernel/initrd" \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off audit=0 apparmor=0 selinux=0 nokaslr no_timer_check" \
        -serial "file:$job/console" -device isa-debug-exit,iobase=0x501,iosize=1 "${shares[@]}" -device virtio-serial-pci \
        -chardev "file,id=out,path=$job/out" -device virtserialport,chardev=out,name=out \
        -chardev "file,id=err,path=$job/err" -device virtserialport,chardev=err,name=err \
        </dev/null >"$job/qemu" 2>&1 &
    machine=$!
}

running() { kill -0 "$machine" 2>/dev/null; }

complain() {
    say "$1 (boot $try of $tries, $chosen)"
    tail -n 25 "$job/qemu" "$job/console" 2>/dev/null | tr -d '\r' >&2
}

began=$(date +%s%N)
since() { echo "$((($(date +%s%N) - began) / 1000000)) ms"; }

for ((try = 1; try <= tries; try++)); do
    rm -f "$share/up" "$share/status" "$job/out" "$job/err"
    mkfifo "$job/out" "$job/err"
    cat "$job/out" &
    readers=($!)
    cat "$job/err" >&2 &
    readers+=($!)
    start

    until=$((SECONDS + boot))
    while [ ! -e "$share/up" ] && running && [ $SECONDS -lt $until ]; do sleep 0.05; done
    if [ ! -e "$share/up" ]; then
        stop
        # A machine that died before it opened its ports leaves the readers waiting for a writer.
        kill "${readers[@]}" 2>/dev/null
        wait "${readers[@]}" 2>/dev/null
        readers=()
        complain "the machine did not come up"
        if [ "$accel" = auto ] && [ "$chosen" = kvm ]; then
            say "going on with tcg"
            chosen=tcg
        fi
        continue
    fi

    tell "up after $(since)"
    if [ -s "$share/setup" ]; then
        say "while the devices were set up:"
        cat "$share/setup" >&2
    fi
    if [ -e "$share/no-devices" ]; then
        stop
        say "the machine has no Soft-RoCE devices"
        exit 125
    fi
    until=$((SECONDS + timeout))
    while running && [ ! -e "$share/status" ] && [ $SECONDS -lt $until ]; do sleep 0.02; done
    late=0
    if [ -e "$share/status" ]; then
        # It powers off by itself, once the output is out.
        until=$((SECONDS + 10))
        while running && [ $SECONDS -lt $until ]; do sleep 0.02; done
    elif running; then
        late=1
    fi
    stop
    wait "${readers[@]}" 2>/dev/null
    readers=()
    tell "ended after $(since); seconds in the machine: $(tr '\n' ' ' <"$share/times")"
    if [ -e "$share/status" ]; then
        exit "$(cat "$share/status")"
    fi
    if [ "$late" -eq 1 ]; then
        say "the command took longer than $timeout s (KVFERRY_VM_TIMEOUT)"
        tail -n 15 "$job/console" | tr -d '\r' >&2
        exit 124
    fi
    # No other try: it may be the command that crashed the kernel.
    complain "the machine died while the command ran"
    exit 125
done
exit 125
