package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// deep is a network of that many Dense and ReLU layers.
func deep(layers int) string {
	return fmt.Sprintf(`cell Net(layers: int = %d) {
    for i in 0..layers {
        block[i] = Dense(64, 64)
        act[i] = ReLU()
    }
    construct(x) {
        for i in 0..layers {
            x = act[i](block[i](x))
        }
        return x
    }
}
train deep {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 1e-3)
    input x: f32[1024, 64]
    input label: f32[1024, 64]
    micro_batch_num = 4
}
`, layers)
}

// compiler runs `ppc compile` as a process and measures it.
type compiler struct {
	ppc, dir string
	runs     int
}

// row compiles with these arguments and prints the time of the process, the size of the bundle and what was compiled.
func (c *compiler) row(head string, args ...string) error {
	out := filepath.Join(c.dir, "out")
	args = append(append([]string{"compile"}, args...), "-stats", "-json", "-o", out)
	var times []float64
	var stats struct {
		Stats struct {
			Functions int     `json:"functions"`
			Calls     int     `json:"calls"`
			Compiled  int     `json:"ops_compiled"`
			Executed  float64 `json:"ops_executed"`
		} `json:"stats"`
	}
	for range c.runs {
		var text []byte
		var failed error
		times = append(times, seconds(func() { text, failed = exec.Command(c.ppc, args...).Output() }))
		if failed != nil {
			return fmt.Errorf("ppc %s: %v: %s", strings.Join(args, " "), failed, text)
		}
		if err := json.Unmarshal(text, &stats); err != nil {
			return err
		}
	}
	bytes := int64(0)
	err := filepath.WalkDir(out, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	m, lo, hi := spread(times)
	fmt.Printf("%s | %.2f | %.2f to %.2f | %.1f | %d | %d | %d | %.0f |\n",
		head, m, lo, hi, float64(bytes)/1e6, stats.Stats.Functions, stats.Stats.Calls, stats.Stats.Compiled, stats.Stats.Executed)
	return err
}

// compileTimes measures the command: process start, all passes, proof and bundle.
func compileTimes(runs int) error {
	dir, ppc, remove, err := command()
	if err != nil {
		return err
	}
	defer remove()
	c := &compiler{ppc, dir, runs}
	const columns = "seconds | range | bundle, MB | functions | calls | ops compiled | ops run in a step |\n"
	fmt.Print("Dense and ReLU, 8 stages, with kernels\n\n| layers | micro-batches | " + columns)
	for _, layers := range []int{12, 1000} {
		file := filepath.Join(dir, "deep.pp")
		if err := os.WriteFile(file, []byte(deep(layers)), 0o666); err != nil {
			return err
		}
		for _, micro := range []int{8, 512} {
			if err := c.row(fmt.Sprintf("| %d | %d", layers, micro), file, "-stages", "8", "-micro", fmt.Sprint(micro)); err != nil {
				return err
			}
		}
	}
	fmt.Print("\nDecoder, 4 stages, no kernels\n\n| layers | micro-batches | lazy-inline | " + columns)
	tiny := filepath.Join("examples", "gpt", "tiny.pp")
	for _, layers := range []int{12, 48, 96, 192, 1000} {
		for _, micro := range []int{4, 64, 1024} {
			for _, mode := range []string{"auto", "off"} {
				err := c.row(fmt.Sprintf("| %d | %d | %s", layers, micro, mode), tiny, "-stages", "4", "-target", "none",
					"-set", fmt.Sprint("layers=", layers), "-set", "batch=1024", "-micro", fmt.Sprint(micro), "-lazy-inline", mode)
				if err != nil {
					return err
				}
			}
		}
	}
	fmt.Print("\nDecoder of 40 layers of width 5,120, 16 stages, no kernels\n\n| micro-batches | " + columns)
	return c.row("| 64", tiny, "-stages", "16", "-target", "none", "-set", "layers=40", "-set", "dim=5120", "-set", "heads=40", "-set", "batch=64", "-micro", "64")
}
