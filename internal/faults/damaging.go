//go:build linux

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// damagingSource is a library that stands before that of MPI and does to one message what a file orders: to the first one of some
// size that the process sends from then on.
const damagingSource = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
int PMPI_Isend(const void *buffer, int count, handle type, int peer, int tag, handle comm, handle *request);
int PMPI_Type_size(handle type, int *bytes);
int PMPI_Pack(const void *buffer, int count, handle type, void *to, int bytes, int *at, handle comm);
int PMPI_Request_free(handle *request);
extern char ompi_mpi_byte[];

enum { nobody = -2, some_size = 64 };

static int ordered(char what[16]) {
	FILE *f = fopen(getenv("` + orderVariable + `"), "r");
	int pid = 0;
	if (!f)
		return 0;
	if (fscanf(f, "%d %15s", &pid, what) != 2)
		pid = 0;
	fclose(f);
	return pid == getpid();
}

int MPI_Isend(const void *buffer, int count, handle type, int peer, int tag, handle comm, handle *request) {
	static int done;
	char what[16], *copy;
	int bytes = 0, at = 0;
	PMPI_Type_size(type, &bytes);
	bytes *= count;
	if (done || bytes < some_size || !ordered(what))
		return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
	done = 1;
	if (!strcmp(what, "lose"))
		return PMPI_Isend(buffer, count, type, nobody, tag, comm, request);
	if (!strcmp(what, "repeat")) {
		handle first;
		PMPI_Isend(buffer, count, type, peer, tag, comm, &first);
		PMPI_Request_free(&first);
		return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
	}
	copy = malloc(bytes); /* stays until the process ends */
	PMPI_Pack(buffer, count, type, copy, bytes, &at, comm);
	if (!strcmp(what, "flip"))
		copy[bytes / 2] ^= 1;
	else
		bytes -= some_size / 2;
	return PMPI_Isend(copy, bytes, ompi_mpi_byte, peer, tag, comm, request);
}
`

// orderVariable names the file with the order: a process, and what to do.
const orderVariable = "PPC_FAULTS_ORDER"

// mpiLibrary is what package mpi loads.
const mpiLibrary = "libmpi.so.40"

func (r *Run) order() string { return filepath.Join(r.own, "order") }

// damage gives an order.
func (r *Run) damage(pid int, what string) error {
	whole := r.order() + ".part"
	if err := os.WriteFile(whole, fmt.Appendf(nil, "%d %s\n", pid, what), 0o600); err != nil {
		return err
	}
	return os.Rename(whole, r.order())
}

// damaging builds that library and returns its folder. It has the name of the real one and needs it by its path: the linker takes
// that from an empty library which says that this is its name.
func damaging(own string) (dir string, err error) {
	compile := func(args ...string) (string, error) {
		out, err := exec.Command("gcc", args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("gcc: %w: %s", err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	found, err := compile("-print-file-name=" + mpiLibrary)
	if err != nil {
		return "", err
	}
	if found == mpiLibrary {
		return "", fmt.Errorf("gcc does not find %s", mpiLibrary)
	}
	dir = filepath.Join(own, "mpi")
	source, empty, named := filepath.Join(dir, "damaging.c"), filepath.Join(dir, "empty.c"), filepath.Join(dir, "named.so")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for name, text := range map[string]string{source: damagingSource, empty: ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	if _, err := compile("-shared", "-o", named, "-Wl,-soname,"+found, empty); err != nil {
		return "", err
	}
	_, err = compile("-shared", "-fPIC", "-Wall", "-Werror", "-o", filepath.Join(dir, mpiLibrary), source, "-Wl,--no-as-needed", named)
	return dir, err
}
