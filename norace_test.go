//go:build !race

package ppc

// stride makes TestReadDamagedBundle try one word of so many.
const stride = 1
