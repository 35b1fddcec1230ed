package frontend_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ppc-lang/ppc/frontend"
)

// What is elaborated from a tree that was parsed before is what is elaborated from the text, also after others have used the tree; and
// another text of the same name has a tree of its own.
func TestTrees(t *testing.T) {
	files, err := filepath.Glob("../examples/*/*.pp")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	trees := &frontend.Trees{}
	for range 2 {
		for _, name := range files {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			blocks := frontend.Blocks("m.pp", src, nil)
			if got := frontend.Blocks("m.pp", src, trees); !slices.Equal(got, blocks) {
				t.Errorf("%s has the blocks %v, not %v", name, got, blocks)
			}
			for _, block := range blocks {
				o := frontend.Options{Block: block, Read: os.ReadFile, Stages: 2}
				want, _ := frontend.Load("m.pp", src, o)
				o.Trees = trees
				o.Stages = 1
				frontend.Load("m.pp", src, o)
				o.Stages = 2
				got, list := frontend.Load("m.pp", src, o)
				if (got == nil) != (want == nil) || got != nil && got.Module.String() != want.Module.String() {
					t.Errorf("%s, block %s: another program: %v", name, block, list)
				}
			}
		}
	}
}
