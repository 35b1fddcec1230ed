package modelgen

import (
	"fmt"
	"path/filepath"

	"github.com/ppc-lang/ppc/data"
)

// WriteData stores rows for a model in dir and returns the file's name.
func (m *Model) WriteData(dir string, rows int) (string, error) {
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
	name := filepath.Join(dir, fmt.Sprintf("data%d.npz", rows))
	return name, data.WriteNPZ(name, arrays)
}
