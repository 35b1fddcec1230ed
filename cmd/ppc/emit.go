package main

import (
	"fmt"
	"strings"
)

// emitters write what starts a bundle's ranks on several hosts, where MPI joins them: see workUnderMPI.
var emitters = map[string]func(name string, ranks int, command []string) string{"slurm": slurmScript, "mpijob": mpiJob}

// slurmScript is a batch script for Slurm. The folder of the bundle must be on all nodes. mpirun, which takes the place of the
// shell, passes the signal on to the ranks; SIGTERM it would let them have for a second only.
func slurmScript(name string, ranks int, command []string) string {
	return fmt.Sprintf(`#!/bin/bash
#SBATCH --job-name=%s
#SBATCH --ntasks=%d
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@60
exec mpirun -n "$SLURM_NTASKS" %s
`, name, ranks, shellWords(command))
}

// mpiJob is a job for the MPI operator of Kubernetes (kubeflow.org/v2beta1). Image and volume are the user's.
func mpiJob(name string, ranks int, command []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: %s
spec:
  slotsPerWorker: 1
  runPolicy:
    cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
            - name: launcher
              image: IMAGE # with ppc, Open MPI and the bundle
              command:
`, label(name))
	for _, w := range append([]string{"mpirun", "-n", fmt.Sprint(ranks)}, command...) {
		fmt.Fprintf(&b, "                - %q\n", w)
	}
	fmt.Fprintf(&b, `    Worker:
      replicas: %d
      template:
        spec:
          containers:
            - name: worker
              image: IMAGE # the same
              resources:
                limits:
                  cpu: 1
`, ranks)
	return b.String()
}

// label makes a name that Kubernetes takes: lower case letters, digits and hyphens.
func label(name string) string {
	out := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	return "ppc-" + strings.Trim(out, "-")
}

// shellWords quotes what a shell would take apart.
func shellWords(words []string) string {
	var out []string
	for _, w := range words {
		if w == "" || strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+") != "" {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}
