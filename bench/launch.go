package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// launches compares two ranks as goroutines with two processes, over shared memory and over sockets. The command runs each,
// in turn, so that all see the same machine. The tutorial prints a tensor in every pass; that is left out, as it costs more
// than the messages.
func launches(data string, runs int) error {
	dir, err := os.MkdirTemp("", "ppc-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	command := filepath.Join(dir, "ppc")
	if out, err := exec.Command("go", "build", "-o", command, "./cmd/ppc").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %s", out)
	}
	src, err := os.ReadFile(mnist)
	if err != nil {
		return err
	}
	fmt.Printf("%-40s %10s %22s %8s\n", "tutorial, two ranks", "steps/s", "range", "ratio")
	for _, batch := range []int{32, 512} {
		var lines []string
		for line := range strings.Lines(string(src)) {
			if !strings.Contains(line, "print(") {
				lines = append(lines, line)
			}
		}
		text := strings.Join(lines, "")
		text = strings.NewReplacer("f32[32,", fmt.Sprintf("f32[%d,", batch), "i32[32]", fmt.Sprintf("i32[%d]", batch), "batch(32)", fmt.Sprintf("batch(%d)", batch)).Replace(text)
		model := filepath.Join(dir, fmt.Sprintf("batch%d.pp", batch))
		if err := os.WriteFile(model, []byte(text), 0o600); err != nil {
			return err
		}
		type variant struct {
			name string
			args []string
			rate []float64
		}
		variants := []*variant{
			{name: "goroutines", args: []string{"run"}},
			{name: "processes, shared memory", args: []string{"launch", "-transport", "shared"}},
			{name: "processes, sockets", args: []string{"launch", "-transport", "socket"}},
		}
		for range runs {
			for _, v := range variants {
				args := append(v.args, "-json", "-data", data, "-epochs", "1000", "-steps", fmt.Sprint(64000/(batch+16)), "-log-dir", filepath.Join(dir, "log"), model)
				out, err := exec.Command(command, args...).Output()
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
			fmt.Printf("%-40s %10.0f %12.0f to %6.0f %8.2f\n", fmt.Sprintf("%s, batch %d", v.name, batch), m, lo, hi, m/base)
		}
	}
	return nil
}
