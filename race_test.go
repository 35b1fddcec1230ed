//go:build race

package ppc

// stride makes TestReadDamagedBundle try one word of so many only: the race detector makes each try ten times as long.
const stride = 10
