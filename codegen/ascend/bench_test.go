package ascend_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend"
	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/passes"
	"github.com/ppc-lang/ppc/plan"
)

// compile compiles a model for a chip.
func compile(t testing.TB, source string, stages int) *plan.Plan {
	t.Helper()
	spec, list := frontend.Load("model.pp", []byte(source), frontend.Options{Stages: stages})
	if list.HasErrors() {
		t.Fatal(list)
	}
	c, _ := chip.ByName("910b3")
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: max(spec.Stages, stages, 1), Schedule: "1f1b", WLag: 4, Target: ascend.Costs(c), Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func deep(layers int) string {
	return fmt.Sprintf(`cell Net(layers: int = %d) {
    for i in 0..layers {
        block[i] = Dense(64, 64)
        act[i] = ReLU()
    }
    construct(x) {
        for i in 0..layers {
            x = act[i](block[i](x))
        }
        return x
    }
}
train deep {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 1e-3)
    input x: f32[1024, 64]
    input label: f32[1024, 64]
    micro_batch_num = 4
}
`, layers)
}

func BenchmarkGenerate(b *testing.B) {
	p := compile(b, deep(1000), 8)
	for b.Loop() {
		if _, err := ascend.Generate(p); err != nil {
			b.Fatal(err)
		}
	}
}
