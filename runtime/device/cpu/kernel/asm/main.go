// Command asm generates the amd64 assembly of package kernel. It is a module
// of its own so that avo never becomes a dependency of the project. Run it by
// go generate in the kernel folder.
package main

import . "github.com/mmcloughlin/avo/build"

func main() {
	ConstraintExpr("amd64")
	emitLaneNumbers()
	for _, w := range []width{avx2, avx512} {
		matmul(w)
		weightGrad(w)
		inputGrad(w)
		elementwise(w)
		columnSums(w)
	}
	Generate()
}
