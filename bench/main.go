// Command bench measures ppc and prints each figure as a table. Figures of one run may be compared with each other, not
// with those of another machine.
//
//	go run ./bench tutorial [-data DIR]   steps per second of the tutorial on one and two ranks
//	go run ./bench launch [-data DIR]     two ranks of the tutorial as goroutines and as processes
//	go run ./bench gemm                   matrix products against gonum
//	go run ./bench compile                compile time against layers and micro-batches, process start included
//	go run ./bench models [-n N]          random models on every cut against the unsplit program
//	go run ./bench inference              requests per second and latency of a session on one and four stages
//	go run ./bench faults [-n N]          random faults of runs as processes: each must end, say why, leave nothing and go on
//	go run ./bench startup                memory of each rank of a wide model as a process, from the start on
//	go run ./bench accuracy -data DIR     ten epochs of the tutorial in two stages
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: bench tutorial|launch|gemm|compile|models|inference|startup|faults|accuracy [flags]")
		os.Exit(2)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	data := flags.String("data", "examples/mnist/data", "folder of MNIST")
	n := flags.Int("n", 2000, "number of models, or of faults")
	runs := flags.Int("runs", 7, "repetitions; the median counts")
	flags.Parse(os.Args[2:])
	var err error
	switch os.Args[1] {
	case "tutorial":
		err = tutorial(*data, *runs)
	case "launch":
		err = launches(*data, *runs)
	case "gemm":
		err = gemm(*runs)
	case "compile":
		err = compileTimes(*runs)
	case "models":
		err = models(*n)
	case "inference":
		err = inference(*runs)
	case "faults":
		err = randomFaults(*n)
	case "startup":
		err = startup()
	case "accuracy":
		err = accuracy(*data)
	default:
		err = fmt.Errorf("unknown benchmark %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command builds ppc in a new folder, which remove takes away.
func command() (dir, path string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", "ppc-bench-"); err != nil {
		return "", "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, "ppc")
	if out, err := exec.Command("go", "build", "-o", path, "./cmd/ppc").CombinedOutput(); err != nil {
		remove()
		return "", "", nil, fmt.Errorf("go build: %s", out)
	}
	return dir, path, remove, nil
}

// median, least and most of some figures.
func spread(v []float64) (median, least, most float64) {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2], v[0], v[len(v)-1]
}

// seconds runs f and returns how long it took.
func seconds(f func()) float64 {
	start := time.Now()
	f()
	return time.Since(start).Seconds()
}
