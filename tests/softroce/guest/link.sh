#!/usr/bin/env bash
# The cable between the two Soft-RoCE devices of the virtual machine.
#
#   link.sh make         makes it, with a device on either end (when the machine boots)
#   link.sh down v0|v1   unplugs an end: the ports of both devices go down
#   link.sh up v0|v1     plugs it in again
#   link.sh down rxe0    as for v0
#
# Soft-RoCE lives in the first network namespace only, so both ends of the cable are in one namespace and the kernel would send
# everything from one address to the other inside itself. Rules send it out of one end and in at the other.
set -euo pipefail

# The kernel drops these routes when a device goes down. One process for all: starting one takes long where it is emulated.
up() {
    ip -batch - <<END
${1:-}
route replace 10.99.0.2 dev v0 src 10.99.0.1 table 99
route replace 10.99.0.1 dev v1 src 10.99.0.2 table 98
END
}

make() {
    local end conf=/proc/sys/net/ipv4/conf
    ip link set lo up
    ip link add v0 type veth peer name v1
    echo 0 >$conf/all/rp_filter
    for end in 0 1; do
        # Packets that come in with a source address of this host are the rule here.
        echo 1 >"$conf/v$end/accept_local"
        echo 0 >"$conf/v$end/rp_filter"
        echo 1 >"/proc/sys/net/ipv6/conf/v$end/disable_ipv6"
        ip addr add "10.99.0.$((end + 1))/24" dev "v$end"
        ip link set "v$end" mtu 9000 up
    done
    up
    # What comes in is for this host; what goes out takes the cable. The rule that delivers inside (0) makes way.
    ip rule add pref 10 iif v0 lookup local
    ip rule add pref 11 iif v1 lookup local
    ip rule add pref 20 from 10.99.0.1 to 10.99.0.2 lookup 99
    ip rule add pref 21 from 10.99.0.2 to 10.99.0.1 lookup 98
    ip rule add pref 30 lookup local
    ip rule del pref 0
    rdma link add rxe0 type rxe netdev v0
    rdma link add rxe1 type rxe netdev v1
}

case "${1:-} ${2:-}" in
"make ") make ;;
"down v"[01] | "down rxe"[01]) exec ip link set "v${2: -1}" down ;;
"up v"[01] | "up rxe"[01]) up "link set v${2: -1} up" ;;
*)
    echo "usage: link.sh make | down v0|v1 | up v0|v1" >&2
    exit 2
    ;;
esac
