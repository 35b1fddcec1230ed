package frontend_test

import (
	"os"
	"testing"

	"github.com/ppc-lang/ppc/frontend"
)

// BenchmarkDeep elaborates the network of 1000 layers in testdata/deep.pp.
func BenchmarkDeep(b *testing.B) {
	src, err := os.ReadFile("testdata/deep.pp")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, list := frontend.Load("deep.pp", src, frontend.Options{}); list.HasErrors() {
			b.Fatal(list.Err())
		}
	}
}
