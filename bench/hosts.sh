#!/usr/bin/env bash
# Runs mpirun between two hosts that are namespaces of this machine, joined by a cable (a veth pair). Each has processes, a host name,
# a loopback and an address of its own; ranks of different hosts reach each other by TCP over the cable only. Needs root, ip, unshare,
# nsenter and setpriv (Debian: iproute2, util-linux) and Open MPI. Nothing is left behind: mpirun ends with this script, and what runs
# on the second host ends with that.
#
# Usage: bench/hosts.sh RANKS COMMAND...    half of the ranks on each host, for example
#        bench/hosts.sh 4 ppc worker model.bundle -save weights.npz
set -euo pipefail
exec 3>&2
fail() {
	echo "hosts.sh: $*" >&3
	exit 3
}
[ $# -ge 2 ] || fail "give a number of ranks and a command"
ranks=$1
shift
for tool in ip unshare nsenter setpriv mpirun; do
	command -v "$tool" >/dev/null || fail "$tool is missing"
done
work=$(mktemp -d)
makers=() hosts=()
trap 'kill "${makers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# A host is the first process of its namespaces, which does nothing.
for host in 1 2; do
	setpriv --pdeathsig KILL unshare --net --uts --pid --fork --kill-child sleep infinity &
	makers+=($!)
	first=() tries=0
	until [ ${#first[@]} -gt 0 ] && [ "$(readlink "/proc/${first[0]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do
		sleep 0.01
		read -r -a first <"/proc/$!/task/$!/children" || { kill -0 $! && [ $((++tries)) -lt 1000 ]; } || fail "namespaces of networks and processes cannot be made here: that takes root, and a system that allows it"
	done 2>/dev/null
	hosts+=("${first[0]}")
done
inside() { nsenter --target "${hosts[$1 - 1]}" --net --uts -- "${@:2}"; }
inside 1 ip link add cable type veth peer name cable netns "${hosts[1]}" || fail "a veth pair cannot be made here"
for host in 1 2; do
	inside "$host" hostname "ppc-host$host"
	inside "$host" ip link set lo up
	inside "$host" ip address add "10.77.0.$host/24" dev cable
	inside "$host" ip link set cable up
done

# What mpirun, on the first host, takes for ssh: the last number of the address is that of the host.
cat >"$work/enter" <<END
#!/bin/sh
hosts="${hosts[*]}"
host=\${1##*.}
shift
set -- "\$(echo \$hosts | cut -d ' ' -f "\$host")" "\$*"
exec nsenter --target "\$1" --net --uts --pid -- sh -c "\$2"
END
chmod +x "$work/enter"
printf '10.77.0.%d slots=%d\n' 1 $(((ranks + 1) / 2)) 2 $((ranks / 2)) >"$work/hosts"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0
inside 1 setpriv --pdeathsig KILL mpirun -n "$ranks" --hostfile "$work/hosts" --mca plm_rsh_agent "$work/enter" --mca pml ob1 --mca btl self,vader,tcp \
	--mca btl_tcp_if_include cable --mca oob_tcp_if_include cable "$@" || status=$?
for host in 1 2; do
	inside "$host" awk -v host="$host" '$1 == "cable:" { print "host " host " has sent " $10 " bytes" }' /proc/net/dev >&2
done
exit "$status"
