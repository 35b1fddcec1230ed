#!/usr/bin/env bash
# Trains mnist.pp on eight devices in two stages, with a process for each. log_output gets scheduler.log, which tells what
# happens to the processes, and worker_N.log, with all that rank N prints: the losses are in that of the second stage's first
# rank, worker_4.log.
#
# Usage: bash run.sh [FLAG...]   flags of ppc launch, as -epochs 3, -n 4 or -save weights.npz
# DATA_PATH names a folder with the files of MNIST, else a sample is taken.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if ! command -v ppc >/dev/null; then
	bin=$(mktemp -d)
	trap 'rm -rf "$bin"' EXIT
	go build -C "$here/../.." -o "$bin/ppc" ./cmd/ppc
	PATH=$bin:$PATH
fi

export DATA_PATH=${DATA_PATH:-$here/data}
ppc launch -n 8 -log-dir log_output "$here/mnist.pp" "$@"
