#!/usr/bin/env bash
# The life of the virtual machine once the host's root is mounted: makes the devices, runs the command, and powers off.
job=/run/kvferry-vm
guest=$(cat $job/guest)
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

uptime() {
    local up
    read -r up _ </proc/uptime
    echo "$1=$up" >>$job/times
}

for port in /sys/class/virtio-ports/*; do
    ln -sf "/dev/${port##*/}" "/run/port-$(cat "$port/name")"
done
ulimit -l unlimited
ulimit -n 65536
hostname kvferry-vm 2>/dev/null

number=0
while read -r folder; do
    mkdir -p "$folder"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none "writable$number" "$folder"
    number=$((number + 1))
done <$job/writable

# What this prints is trouble; run.sh shows it.
bash "$guest/link.sh" make >$job/setup 2>&1
[ -e /sys/class/infiniband/rxe0 ] && [ -e /sys/class/infiniband/rxe1 ] || : >$job/no-devices
uptime devices
: >$job/up

(
    # shellcheck disable=SC1091 # written by run.sh
    . $job/environment
    cd "$(cat $job/folder)" || exit 125
    mapfile -d '' -t command <$job/command
    exec "${command[@]}"
) </dev/null >/run/port-out 2>/run/port-err
status=$?
uptime command

while read -r _ folder _; do
    umount "$folder"
done < <(grep '^writable' /proc/mounts)
sync
# Renamed, so that run.sh never reads half of it.
echo $status >$job/status.new
mv $job/status.new $job/status
# The port ends QEMU at once; powering off is for a QEMU without it.
printf '\0' | dd of=/dev/port bs=1 seek=$((0x501)) 2>/dev/null
echo o >/proc/sysrq-trigger
sleep 60
