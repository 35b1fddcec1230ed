package kernel

// genericLanes is how many partial sums a dot product of the generic path
// keeps.
const genericLanes = 8

// generic is the path in plain Go. Its chains multiply and add with two
// roundings; the conversions forbid the compiler to fuse them on machines
// where it could, so that its results are the same everywhere.
func generic() Path {
	return Path{
		name: "generic", tileRows: 4,
		supported:  func() bool { return true },
		matMul:     matMulGeneric,
		weightGrad: weightGradGeneric,
		inputGrad:  inputGradGeneric,
		add: func(dst, a, b []float32) {
			for i := range dst {
				dst[i] = a[i] + b[i]
			}
		},
		sub: func(dst, a, b []float32) {
			for i := range dst {
				dst[i] = a[i] - b[i]
			}
		},
		mul: func(dst, a, b []float32) {
			for i := range dst {
				dst[i] = a[i] * b[i]
			}
		},
		reluGrad: func(dst, a, b []float32) {
			for i := range dst {
				if b[i] > 0 {
					dst[i] = a[i]
				} else {
					dst[i] = 0
				}
			}
		},
		relu: func(dst, a []float32) {
			for i := range dst {
				v := a[i]
				if v < 0 {
					v = 0
				}
				dst[i] = v
			}
		},
		scale: func(dst, a []float32, s float32) {
			for i := range dst {
				dst[i] = s * a[i]
			}
		},
		multiplyAdd: func(dst, a, b []float32, s float32) {
			for i := range dst {
				dst[i] = a[i] + float32(s*b[i])
			}
		},
		multiplySubtract: func(dst, a, b []float32, s float32) {
			for i := range dst {
				dst[i] = a[i] - float32(s*b[i])
			}
		},
		columnSums: func(sums, x []float32, rows int) {
			for r := range rows {
				for i, v := range x[r*len(sums):][:len(sums)] {
					sums[i] += v
				}
			}
		},
	}
}

func matMulGeneric(y []float32, ldy int, x []float32, ldx, rows int, panel []float32, k int, bias []float32, columns int, relu bool) {
	for r := range rows {
		var sums [PanelColumns]float32
		for i, v := range x[r*ldx:][:k] {
			w := (*[PanelColumns]float32)(panel[i*PanelColumns:])
			for j := range sums {
				sums[j] += float32(v * w[j])
			}
		}
		out := y[r*ldy:][:columns]
		for j := range out {
			v := sums[j]
			if bias != nil {
				v += bias[j]
			}
			if relu && v < 0 {
				v = 0
			}
			out[j] = v
		}
	}
}

func weightGradGeneric(block []float32, segments []Segment, ldx, lddy, k0, count, column, columns int, load bool) {
	if !load {
		clear(block)
	}
	for i := range count {
		sums := block[i*PanelColumns:][:columns]
		for _, s := range segments {
			for r := range s.Rows {
				v := s.X[r*ldx+k0+i]
				for j, d := range s.DY[r*lddy+column:][:columns] {
					sums[j] += float32(v * d)
				}
			}
		}
	}
}

func inputGradGeneric(dx []float32, lddx int, dy []float32, lddy, rows int, b []float32, panelStride, n, count int) {
	for r := range rows {
		for i := range count {
			var sums [genericLanes]float32
			for column := 0; column < n; column += PanelColumns {
				d := dy[r*lddy+column:][:min(PanelColumns, n-column)]
				w := b[(column/PanelColumns)*panelStride+i*PanelColumns:][:len(d)]
				for len(d) >= genericLanes {
					for l := range sums {
						sums[l] += float32(d[l] * w[l])
					}
					d, w = d[genericLanes:], w[genericLanes:]
				}
				for l := range d {
					sums[l] += float32(d[l] * w[l])
				}
			}
			dx[r*lddx+i] = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
		}
	}
}
