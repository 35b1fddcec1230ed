package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ppc-lang/ppc/data"
)

// startup measures the memory of the processes of a model of which no rank could hold all: what the plan gives a rank, and the
// most that its process has had, from the start over one step to the end. A process needs about 20 MiB for the command itself.
func startup() error {
	const width = 4096
	dir, ppc, remove, err := command()
	if err != nil {
		return err
	}
	defer remove()
	in := func(name string) string { return filepath.Join(dir, name) }
	model := fmt.Sprintf(`
cell Net {
    for i in 0..4 { fc[i] = Dense(%[1]d, %[1]d, bias = false) @stage(i) }
    construct(x) {
        for f in fc { x = tanh(f(x)) }
        return x
    }
}
train wide {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1, momentum = 0.9)
    input x: f32[8, %[1]d]
    input y: f32[8, %[1]d]
    micro_batch_num = 2
    epochs = 2
    dataset = npz("rows.npz") | batch(8)
}
`, width)
	if err := os.WriteFile(in("wide.pp"), []byte(model), 0o600); err != nil {
		return err
	}
	rows := make([]float32, 8*width)
	for i := range rows {
		rows[i] = float32(i%7) / 7
	}
	if err := data.WriteNPZ(in("rows.npz"), []data.Array{data.NewFloat32("x", []int{8, width}, rows), data.NewFloat32("y", []int{8, width}, rows)}); err != nil {
		return err
	}
	out, err := exec.Command(ppc, "compile", in("wide.pp"), "-target", "none", "-json", "-o", in("b")).Output()
	if err != nil {
		return err
	}
	var sum struct {
		Stages []struct {
			Params int `json:"params"`
			Peak   int `json:"peak_bytes"`
		} `json:"stages"`
	}
	if err := json.Unmarshal(out, &sum); err != nil {
		return err
	}
	const mib = 1 << 20
	all := 0
	for _, s := range sum.Stages {
		all += 4 * s.Params
	}
	fmt.Printf("parameters of all stages: %d MiB; a rank, as planned: %d MiB, %d of it parameters\n", all/mib, sum.Stages[0].Peak/mib, 4*sum.Stages[0].Params/mib)
	fmt.Printf("%-34s %s\n", "most memory of a rank's process", "MiB")
	for _, c := range []struct {
		name string
		args []string
	}{
		{"initialisers", nil},
		{"saving a checkpoint", []string{"-checkpoint", in("states")}},
		{"-save", []string{"-save", in("end.safetensors")}},
		{"-resume", []string{"-steps", "2", "-resume", in("states")}},
		{"-init", []string{"-init", in("states")}},
	} {
		args := append([]string{"launch", "-log-dir", in("log"), in("b"), "-data", in("rows.npz"), "-steps", "1"}, c.args...)
		peaks, err := peaks(exec.Command(ppc, args...))
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("%-34s %s\n", c.name, peaks)
	}
	return nil
}

// peaks runs a command and gives the largest resident memory of each process that it starts, in MiB.
func peaks(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	most := map[int]int{}
	var order []int
	for {
		select {
		case err := <-ended:
			if err != nil {
				return "", fmt.Errorf("%w: %s", err, stderr.String())
			}
			var list []string
			for _, pid := range order {
				list = append(list, fmt.Sprint(most[pid]))
			}
			return strings.Join(list, " "), nil
		case <-time.After(5 * time.Millisecond):
		}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		for _, t := range tasks {
			text, _ := os.ReadFile(t)
			for _, f := range strings.Fields(string(text)) {
				pid, _ := strconv.Atoi(f)
				if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !bytes.Contains(line, []byte("\x00worker\x00")) {
					continue // not yet
				}
				status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
				_, after, ok := strings.Cut(string(status), "VmHWM:")
				if !ok {
					continue
				}
				kib, _ := strconv.Atoi(strings.Fields(after)[0])
				if _, known := most[pid]; !known {
					order = append(order, pid)
				}
				most[pid] = max(most[pid], kib>>10)
			}
		}
	}
}
