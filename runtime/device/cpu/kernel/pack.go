package kernel

// PackedLen is the number of elements of B[k, n] in packed form.
func PackedLen(k, n int) int { return panels(n) * k * PanelColumns }

func panels(n int) int { return (n + PanelColumns - 1) / PanelColumns }

// panelColumns is the number of valid columns in a panel of B[k, n].
func panelColumns(panel, n int) int { return min(PanelColumns, n-panel*PanelColumns) }

// Pack writes the row-major b[k, n] to dst in packed form.
func Pack(dst, b []float32, k, n int) {
	dst, b = dst[:PackedLen(k, n)], b[:k*n]
	for panel := range panels(n) {
		columns := panelColumns(panel, n)
		for i := range k {
			row := dst[(panel*k+i)*PanelColumns:][:PanelColumns]
			copy(row, b[i*n+panel*PanelColumns:][:columns])
			clear(row[columns:])
		}
	}
}

// PackTransposed writes B[k, n] to dst in packed form, given its transpose
// b[n, k] in row-major form.
func PackTransposed(dst, b []float32, k, n int) {
	dst, b = dst[:PackedLen(k, n)], b[:k*n]
	for panel := range panels(n) {
		columns := panelColumns(panel, n)
		block := dst[panel*k*PanelColumns:][:k*PanelColumns]
		for j := range columns {
			row := b[(panel*PanelColumns+j)*k:][:k]
			for i, v := range row {
				block[i*PanelColumns+j] = v
			}
		}
		if columns == PanelColumns {
			continue
		}
		for i := range k {
			clear(block[i*PanelColumns:][columns:PanelColumns])
		}
	}
}

// Unpack writes the packed B[k, n] to dst in row-major form.
func Unpack(dst, b []float32, k, n int) {
	dst, b = dst[:k*n], b[:PackedLen(k, n)]
	for panel := range panels(n) {
		columns := panelColumns(panel, n)
		for i := range k {
			copy(dst[i*n+panel*PanelColumns:][:columns], b[(panel*k+i)*PanelColumns:])
		}
	}
}

// UnpackTransposed writes the transpose [n, k] of the packed B[k, n] to dst in
// row-major form.
func UnpackTransposed(dst, b []float32, k, n int) {
	dst, b = dst[:k*n], b[:PackedLen(k, n)]
	for panel := range panels(n) {
		block := b[panel*k*PanelColumns:][:k*PanelColumns]
		for j := range panelColumns(panel, n) {
			row := dst[(panel*PanelColumns+j)*k:][:k]
			for i := range row {
				row[i] = block[i*PanelColumns+j]
			}
		}
	}
}
