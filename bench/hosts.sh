#!/usr/bin/env bash
# Runs mpirun between two hosts that are network namespaces of this machine, joined by a cable (a veth pair). Each has a host name,
# a loopback and an address of its own; ranks of different hosts reach each other by TCP over the cable only. Needs root, ip, unshare
# and nsenter (Debian: iproute2, util-linux) and Open MPI. Nothing is left behind.
#
# If the cable is cut (ip link set cable down), ranks end after -deadline with the rank that they wait for; mpirun itself may then
# wait for the other host without end.
#
# Usage: bench/hosts.sh RANKS COMMAND...    half of the ranks on each host, for example
#        bench/hosts.sh 4 ppc worker model.bundle -save weights.npz
set -euo pipefail
ranks=$1
shift
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# A host is a process that does nothing in namespaces of its own; they end with it.
for host in 1 2; do
	unshare --net --uts sleep infinity &
	pids+=($!)
done
inside() { nsenter --target "${pids[$1 - 1]}" --net --uts -- "${@:2}"; }
for host in 1 2; do
	until [ "$(readlink "/proc/${pids[host - 1]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
done
inside 1 ip link add cable type veth peer name cable netns "${pids[1]}"
for host in 1 2; do
	inside "$host" hostname "ppc-host$host"
	inside "$host" ip link set lo up
	inside "$host" ip address add "10.77.0.$host/24" dev cable
	inside "$host" ip link set cable up
done

# What mpirun takes for ssh: the last number of the address is that of the host.
cat >"$work/enter" <<END
#!/bin/sh
pids="${pids[*]}"
host=\${1##*.}
shift
set -- "\$(echo \$pids | cut -d ' ' -f "\$host")" "\$*"
exec nsenter --target "\$1" --net --uts -- sh -c "\$2"
END
chmod +x "$work/enter"
printf '10.77.0.%d slots=%d\n' 1 $(((ranks + 1) / 2)) 2 $((ranks / 2)) >"$work/hosts"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0
inside 1 mpirun -n "$ranks" --hostfile "$work/hosts" --mca plm_rsh_agent "$work/enter" --mca pml ob1 --mca btl self,vader,tcp \
	--mca btl_tcp_if_include cable --mca oob_tcp_if_include cable "$@" || status=$?
for host in 1 2; do
	inside "$host" awk -v host="$host" '$1 == "cable:" { print "host " host " has sent " $10 " bytes" }' /proc/net/dev >&2
done
exit "$status"
