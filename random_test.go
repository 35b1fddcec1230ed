package ppc

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/internal/modelgen"
)

// drawn takes choices from rapid.
type drawn struct{ t *rapid.T }

func (d drawn) Int(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(d.t, name) }

// Every drawn model compiles for every cut, schedule and micro-batch count.
func TestRandomModelsCompile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := modelgen.Draw(drawn{t})
		for _, cut := range m.Cuts {
			for _, schedule := range []string{"gpipe", "1f1b"} {
				_, err := Compile(context.Background(), Options{File: "random.pp", Source: []byte(m.With(cut)), Schedule: schedule, Verify: true})
				if err != nil {
					t.Fatalf("%v\n%s", Diagnostics(err), m.With(cut))
				}
			}
		}
	})
}

// writeData stores rows for a drawn model.
func writeData(t testing.TB, m *modelgen.Model, rows int) string {
	state := uint32(12345)
	next := func() float32 {
		state = state*1664525 + 1013904223
		return float32(state>>8)/(1<<23) - 1
	}
	x := make([]float32, rows*m.Width)
	for i := range x {
		x[i] = next()
	}
	arrays := []data.Array{data.NewFloat32("x", []int{rows, m.Width}, x)}
	if m.Integer {
		label := data.Array{Name: "label", DType: data.I32, Shape: []int{rows}}
		for range rows {
			c := byte(int((next()+1)*100) % m.Classes)
			label.Data = append(label.Data, c, 0, 0, 0)
		}
		arrays = append(arrays, label)
	} else {
		y := make([]float32, rows*m.Classes)
		for i := range y {
			y[i] = next()
		}
		arrays = append(arrays, data.NewFloat32("label", []int{rows, m.Classes}, y))
	}
	name := filepath.Join(t.TempDir(), fmt.Sprintf("data%d.npz", rows))
	if err := data.WriteNPZ(name, arrays); err != nil {
		t.Fatal(err)
	}
	return name
}
