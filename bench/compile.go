package main

import (
	"fmt"
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

// compileTimes measures the command, process start and writing of the bundle included, with kernels for the default chip.
func compileTimes(runs int) error {
	dir, err := os.MkdirTemp("", "ppc-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ppc := filepath.Join(dir, "ppc")
	if out, err := exec.Command("go", "build", "-o", ppc, "./cmd/ppc").CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %s", err, out)
	}
	fmt.Printf("%8s %8s %8s %12s %12s %20s\n", "layers", "stages", "micro", "lazy-inline", "seconds", "range")
	for _, layers := range []int{12, 48, 96, 192, 1000} {
		file := filepath.Join(dir, "deep.pp")
		if err := os.WriteFile(file, []byte(deep(layers)), 0o666); err != nil {
			return err
		}
		for _, micro := range []int{8, 64, 512, 1024} {
			for _, mode := range []string{"auto", "off"} {
				var v []float64
				for range runs {
					var failed error
					v = append(v, seconds(func() {
						cmd := exec.Command(ppc, "compile", file, "-stages", "8", "-micro", fmt.Sprint(micro), "-lazy-inline", mode, "-o", filepath.Join(dir, "out"))
						if out, err := cmd.CombinedOutput(); err != nil {
							failed = fmt.Errorf("%s: %v: %s", strings.Join(cmd.Args, " "), err, out)
						}
					}))
					if failed != nil {
						return failed
					}
				}
				m, lo, hi := spread(v)
				fmt.Printf("%8d %8d %8d %12s %12.3f %10.3f to %6.3f\n", layers, 8, micro, mode, m, lo, hi)
			}
		}
	}
	return nil
}
