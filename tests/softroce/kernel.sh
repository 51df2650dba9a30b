#!/usr/bin/env bash
# Prepares what the virtual machine boots: a kernel of Debian's and an initial RAM disk with the modules that Soft-RoCE needs.
#
#   kernel.sh CACHE "PACKAGE..."
#
# Prints the folder that has `vmlinux` and `initrd`. Downloads a kernel package where the cache has none, and unpacks it there;
# nothing is installed. Meant for run.sh, which checks the tools.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$1
read -r -a packages <<<"$2"

# In the order of need. crc32: without it rdma_rxe loads, but adds no device.
modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay crc32_generic crc32c_generic veth ib_uverbs rdma_rxe sch_netem)

say() { echo "softroce: $*" >&2; }

# What a cached kernel depends on: when one of these changes, it is made anew.
recipe=$(cat "$here/kernel.sh" "$here/guest/init.sh" <(echo "${packages[*]}") | sha256sum | cut -c1-16)
ready=$cache/$recipe
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -e "$ready/vmlinux" ]; then
    echo "$ready"
    exit 0
fi

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT

# A kernel's package is named after its version; the packages that are asked for only depend on the newest one.
versioned() {
    local package found
    for package in "${packages[@]}"; do
        found=$(apt-cache depends "$package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
        if [ -n "$found" ]; then
            echo "$found"
            return
        fi
    done
}
package=$(versioned)
if [ -z "$package" ]; then
    apt-get update -qq >&2
    package=$(versioned)
fi
if [ -z "$package" ]; then
    say "apt knows none of these packages: ${packages[*]} (set KVFERRY_VM_KERNEL)"
    exit 1
fi
version=${package#linux-image-}
say "preparing the kernel $version (once)"

# As root: apt's own user may not write to the cache.
if ! (cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package") >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
mv "$work"/*.deb "$work/package"
mkdir "$work/kernel"
dpkg-deb --fsys-tarfile "$work/package" |
    tar -x -C "$work/kernel" --wildcards './boot/vmlinuz-*' './lib/modules/*/modules.*' './lib/modules/*/kernel/drivers/infiniband/*' \
        './lib/modules/*/kernel/net/*' './lib/modules/*/kernel/fs/*' './lib/modules/*/kernel/crypto/*' \
        './lib/modules/*/kernel/lib/*' './lib/modules/*/kernel/drivers/net/*.ko*' './lib/modules/*/kernel/drivers/virtio/*' \
        './lib/modules/*/kernel/drivers/char/*.ko*' './lib/modules/*/kernel/drivers/block/*.ko*'
depmod -b "$work/kernel" "$version" 2>/dev/null

# ---- the initial RAM disk: a busybox, the modules in the order in which they load, and init

disk=$work/disk
mkdir -p "$disk"/{bin,modules,dev,proc,sys,lower,upper,root}
cp "$(command -v busybox)" "$disk/bin/busybox"
cp "$here/guest/init.sh" "$disk/init"
chmod 755 "$disk/init"

# Unpacked and without debug data or signature: emulated, it loads several times faster.
add_module() {
    local path=$1 options=$2 name
    name=$(basename "$path")
    name=${name%.xz}
    name=${name%.zst}
    [ ! -e "$disk/modules/$name" ] || return 0
    case $path in
    *.xz) xz -dc "$path" ;;
    *.zst) zstd -dcq "$path" ;;
    *) cat "$path" ;;
    esac >"$work/module"
    objcopy --strip-debug -R .BTF -R .BTF_ids "$work/module" "$disk/modules/$name" 2>/dev/null ||
        cp "$work/module" "$disk/modules/$name"
    echo "$name $options" >>"$disk/modules/order"
}
for module in "${modules[@]}"; do
    # A module that is built in, or that this kernel does not have, has no line. The one that matters is checked below.
    while read -r verb path options; do
        [ "$verb" != insmod ] || add_module "$path" "$options"
    done < <(modprobe -d "$work/kernel" -S "$version" --show-depends "$module" 2>/dev/null)
done
for module in rdma_rxe ib_uverbs veth sch_netem; do
    if [ ! -e "$disk/modules/$module.ko" ]; then
        say "the kernel $version has no module $module (set KVFERRY_VM_KERNEL)"
        exit 1
    fi
done
mkdir "$work/ready"
(cd "$disk" && find . | LC_ALL=C sort | cpio -o -H newc --quiet) >"$work/ready/initrd"

# ---- the kernel itself, out of its self-extracting image (Documentation/arch/x86/boot.rst: setup_sects at 0x1f1,
# payload_offset at 0x248, payload_length at 0x24c; the last four bytes are the unpacked length)

image=$work/kernel/boot/vmlinuz-$version
number() { od -An -j "$1" -N "$2" -t "u$2" "$image" | tr -d ' '; }
sectors=$(number $((0x1f1)) 1)
[ "$sectors" -ne 0 ] || sectors=4
start=$(((sectors + 1) * 512 + $(number $((0x248)) 4)))
length=$(($(number $((0x24c)) 4) - 4))
# `tail` gets its pipe closed by `head`, which is no failure; what came out is checked below.
(tail -c +$((start + 1)) "$image" || true) 2>/dev/null | head -c "$length" >"$work/payload"
case $(od -An -N 4 -t x1 "$work/payload" | tr -d ' ') in
28b52ffd) unpack=(zstd -dcq) ;;
fd377a58) unpack=(xz -dc) ;;
1f8b*) unpack=(gzip -dc) ;;
*)
    say "the kernel $version is packed in a way that is not known here"
    exit 1
    ;;
esac
"${unpack[@]}" <"$work/payload" >"$work/ready/vmlinux"
if [ "$(head -c 4 "$work/ready/vmlinux" | od -An -t x1 | tr -d ' ')" != 7f454c46 ]; then
    say "the kernel $version did not unpack to an ELF file"
    exit 1
fi

# Renamed at the end: a folder that is there is whole.
rm -rf "$ready"
mv "$work/ready" "$ready"
echo "$ready"
