package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// launches compares ranks as goroutines with processes, over shared memory, over sockets and over MPI. The command runs each, in
// turn, so that all see the same machine. What a step takes more than with goroutines is the transport's share of it. The tutorial
// prints a tensor in every pass; that is left out, as it costs more than the messages.
func launches(data string, runs int) error {
	dir, ppc, remove, err := command()
	if err != nil {
		return err
	}
	defer remove()
	fmt.Printf("%-32s %8s %20s %8s %12s\n", "tutorial", "steps/s", "range", "ratio", "transport")
	for _, batch := range []int{32, 512} {
		for _, c := range []struct {
			file  string
			ranks int
		}{{mnist, 2}, {"examples/mnist/mnist_auto.pp", 4}} {
			src, err := os.ReadFile(c.file)
			if err != nil {
				return err
			}
			text := strings.NewReplacer("f32[32,", fmt.Sprintf("f32[%d,", batch), "i32[32]", fmt.Sprintf("i32[%d]", batch), "batch(32)", fmt.Sprintf("batch(%d)", batch)).Replace(unprinted(string(src)))
			model := filepath.Join(dir, fmt.Sprintf("batch%d-%d.pp", batch, c.ranks))
			if err := os.WriteFile(model, []byte(text), 0o600); err != nil {
				return err
			}
			if err := launchRanks(dir, ppc, model, data, batch, c.ranks, runs); err != nil {
				return err
			}
		}
	}
	return nil
}

// launchRanks prints the figures of one batch size on so many stages of one rank.
func launchRanks(dir, ppc, model, data string, batch, ranks, runs int) error {
	type variant struct {
		name string
		args []string
		rate []float64
	}
	n := fmt.Sprint(ranks)
	variants := []*variant{
		{name: "goroutines", args: []string{ppc, "run"}},
		{name: "shared memory", args: []string{ppc, "launch", "-transport", "shared"}},
		{name: "sockets", args: []string{ppc, "launch", "-transport", "socket"}},
	}
	if _, err := exec.LookPath("mpirun"); err == nil {
		variants = append(variants, &variant{name: "MPI", args: []string{"mpirun", "-n", n, ppc, "worker"}})
	}
	for range runs {
		for _, v := range variants {
			args := append(v.args[1:], "-json", "-stages", n, "-data", data, "-epochs", "1000", "-steps", fmt.Sprint(64000/(batch+16)), "-log-dir", filepath.Join(dir, "log"), model)
			cmd := exec.Command(v.args[0], args...)
			cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1")
			out, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			var r struct {
				Rate float64 `json:"steps_per_s"`
			}
			if err := json.Unmarshal(out, &r); err != nil {
				return err
			}
			v.rate = append(v.rate, r.Rate)
		}
	}
	base, _, _ := spread(variants[0].rate)
	for _, v := range variants {
		m, lo, hi := spread(v.rate)
		fmt.Printf("%-32s %8.0f %10.0f to %6.0f %8.2f %10.0f %%\n", fmt.Sprintf("batch %d, %d ranks, %s", batch, ranks, v.name), m, lo, hi, m/base, 100*(1-m/base))
	}
	return nil
}

// unprinted is a program without its print operations.
func unprinted(src string) string {
	var b strings.Builder
	for line := range strings.Lines(src) {
		if !strings.Contains(line, "print(") {
			b.WriteString(line)
		}
	}
	return b.String()
}
