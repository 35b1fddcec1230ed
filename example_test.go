package ppc_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

const network = `
cell Net {
    body = Dense(16, 32)
    head = Dense(32, 4)
    construct(x) {
        return head(relu(body(x)))
    }
}

train net {
    network         = Net()
    loss            = CrossEntropyLoss()
    optimizer       = SGD(lr = 0.1)
    input x         : f32[64, 16]
    input label     : i32[64]
    micro_batch_num = 8
}
`

// A compilation takes text and gives a plan; nothing is printed and no file is touched.
func ExampleCompile() {
	result, err := ppc.Compile(context.Background(), ppc.Options{File: "net.pp", Source: []byte(network), Stages: 2})
	if err != nil {
		fmt.Println(ppc.Diagnostics(err))
		return
	}
	for _, chunk := range result.Plan.Programs[0].Chunks {
		fmt.Printf("stage %d: %s\n", chunk.Stage, strings.Join(chunk.Cells, " "))
	}
	for _, m := range result.Plan.Programs[0].Messages {
		fmt.Printf("chunk %d to chunk %d: %d bytes a micro-batch\n", m.From, m.To, m.Bytes())
	}
	// Output:
	// stage 0: body
	// stage 1: head loss
	// chunk 0 to chunk 1: 1024 bytes a micro-batch
	// chunk 1 to chunk 0: 1024 bytes a micro-batch
}

// Errors for the user are values: a code, a place, a message, a repair.
func ExampleDiagnostics() {
	source := []byte(strings.Replace(network, "Dense(32, 4)", "Dens(32, 4)", 1))
	_, err := ppc.Compile(context.Background(), ppc.Options{File: "net.pp", Source: source, Stages: 2})
	var text strings.Builder
	diag.Render(&text, ppc.Diagnostics(err), func(string) ([]byte, bool) { return source, true })
	fmt.Print(text.String())
	// Output:
	// net.pp:4:12: error E0201: unknown name "Dens"
	//     4 |     head = Dens(32, 4)
	//       |            ^^^^
	//   repair: did you mean "Dense"?
}

// The files of a bundle, in memory.
func ExampleCompile_bundle() {
	result, err := ppc.Compile(context.Background(), ppc.Options{File: "net.pp", Source: []byte(network), Stages: 2})
	if err != nil {
		fmt.Println(ppc.Diagnostics(err))
		return
	}
	files, err := plan.Files(result.Plan, result.Code)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range files {
		fmt.Println(f.Path)
	}
	// Output:
	// boundaries.csv
	// buffers.csv
	// frames.csv
	// optimizer.ir
	// parameters.csv
	// schedule.csv
	// shared.csv
	// stage0/actions.csv
	// stage0/program.ir
	// stage1/actions.csv
	// stage1/program.ir
	// states.csv
	// plan.yaml
}

// Compile and train in one process, one goroutine per stage.
func Example() {
	source, err := os.ReadFile("examples/mnist/mnist.pp")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	result, err := ppc.Compile(ctx, ppc.Options{File: "examples/mnist/mnist.pp", Source: source})
	if err != nil {
		fmt.Println(ppc.Diagnostics(err))
		return
	}
	done, err := runtime.Run(ctx, result.Plan, runtime.Options{
		Open:   cpu.Open,
		Seed:   result.Plan.Seed,
		Steps:  31,
		Log:    func(int) io.Writer { return io.Discard }, // what print operations show
		OnStep: func(s runtime.Step) { report(s) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d stages, %d steps, %d parameters\n", result.Plan.NumStages, done.Steps, len(done.Params))
	// Output:
	// step 0: loss 9.2
	// step 10: loss 8.3
	// step 20: loss 7.2
	// step 30: loss 5.7
	// 2 stages, 31 steps, 5 parameters
}

func report(s runtime.Step) {
	if s.Step%10 == 0 {
		fmt.Printf("step %d: loss %.1f\n", s.Step, s.Loss)
	}
}
