#!/bin/busybox sh
# The first program of the virtual machine, in its initial RAM disk: loads the modules, mounts the host's root with a layer of memory
# above it, and hands over to main.sh there.
box=/bin/busybox
$box mount -t devtmpfs dev /dev
$box mount -t proc proc /proc
$box mount -t sysfs sys /sys

die() {
    echo "softroce init: $*"
    $box poweroff -f
    $box sleep 60
}

while read -r module options; do
    # shellcheck disable=SC2086 # options are words
    $box insmod "/modules/$module" $options || echo "softroce init: $module does not load"
done </modules/order
read -r loaded _ </proc/uptime

options=trans=virtio,version=9p2000.L,msize=512000
$box mount -t 9p -o $options,ro,cache=loose root /lower || die "the host's root does not mount"
$box mount -t tmpfs -o size=80% tmpfs /upper
$box mkdir /upper/files /upper/work
$box mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root || die "no overlay"
for folder in dev proc sys; do
    $box mount --move /$folder /root/$folder
done
$box mount -t tmpfs tmpfs /root/run
$box mkdir /root/run/kvferry-vm
$box mkdir -p /root/dev/shm /root/dev/pts
$box mount -t tmpfs tmpfs /root/dev/shm
$box mount -t devpts devpts /root/dev/pts
$box mount -t 9p -o $options,cache=none job /root/run/kvferry-vm || die "the folder of the run does not mount"
echo "modules=$loaded" >/root/run/kvferry-vm/times
read -r guest </root/run/kvferry-vm/guest
exec $box switch_root /root /bin/bash "$guest/main.sh"
die "the host's root has no bash"
