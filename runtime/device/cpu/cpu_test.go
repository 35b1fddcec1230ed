package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

func TestStagesAgree(t *testing.T) {
	for _, path := range kernel.Available() {
		for _, transposed := range []bool{false, true} {
			t.Run(fmt.Sprint(path, transposed), func(t *testing.T) {
				var losses []float32
				var params map[string][]float32
				for _, c := range []struct {
					stages, planLag, lag int
					schedule             string
					norms                bool
				}{{1, 0, 0, "1f1b", false}, {1, 4, 4, "1f1b", false}, {2, 0, 0, "1f1b", true}, {2, 2, 2, "1f1b", false}, {2, 4, 4, "gpipe", false}, {2, 3, 3, "1f1b", true}} {
					r := open(t, compile(t, mlp(4, c.stages, transposed, c.schedule), c.planLag), device.Options{Path: path, Poison: true})
					r.initial()
					var got []float32
					for step := range 5 {
						r.load(0 * step)
						got = append(got, r.step(c.lag, c.norms)...)
					}
					if losses == nil {
						losses, params = got, r.params()
						if !(got[len(got)-4] < got[0]) || math.IsNaN(float64(got[0])) {
							t.Errorf("losses do not fall: %v", got)
						}
						continue
					}
					if !slices.Equal(losses, got) {
						t.Errorf("%+v: losses %v, want %v", c, got, losses)
					}
					if d := cmp.Diff(params, r.params()); d != "" {
						t.Errorf("%+v: parameters differ", c)
					}
				}
			})
		}
	}
}
