package ascend

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

var update = flag.Bool("update", false, "rewrite the golden sections")

// emitted generates the first function of an IR text.
func emitted(t *testing.T, text string, place func(f *ir.Func) *plan.Frame) (*ir.Func, *stageEmitter, emulator.Function) {
	t.Helper()
	m, err := ir.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	f := m.Funcs[0]
	var frame *plan.Frame
	if place != nil {
		frame = place(f)
	}
	s := &stageEmitter{chip: testChip(t), index: map[string]int{}}
	done, err := s.function(f, frame)
	if err != nil {
		t.Fatal(err)
	}
	return f, s, done
}

// TestGoldens holds the steps of functions and the text of their kernels.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, s, done := emitted(t, string(archive.Files[0].Data), nil)
			var steps strings.Builder
			for _, step := range done.Steps {
				fmt.Fprintf(&steps, "%s blocks=%d operands=%v assign=%t op=%d\n", s.program.Kernels.Kernels[step.Kernel].Name, step.Blocks, step.Operands, step.Assign, step.Op)
			}
			got := &txtar.Archive{Comment: archive.Comment, Files: archive.Files[:1:1]}
			got.Files = append(got.Files, txtar.File{Name: "steps", Data: []byte(steps.String())})
			for _, k := range s.program.Kernels.Sources {
				got.Files = append(got.Files, txtar.File{Name: k.Name, Data: k.Text})
			}
			if *update {
				if err := os.WriteFile(name, txtar.Format(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(got))); d != "" {
				t.Errorf("the text differs (-want +got); -update rewrites it:\n%s", d)
			}
		})
	}
}

// launched lists the kernels of a function by the readable part of their names.
func launched(s *stageEmitter, f emulator.Function) string {
	var names []string
	for _, step := range f.Steps {
		if step.Kernel < 0 {
			names = append(names, "-")
			continue
		}
		name := s.program.Kernels.Kernels[step.Kernel].Name
		names = append(names, name[:strings.LastIndex(name, "_")])
	}
	return strings.Join(names, " ")
}

// TestGrouping: what is fused and what is not.
func TestGrouping(t *testing.T) {
	for _, c := range []struct {
		name, body, want string
		// offsets of operation results in program order; nil without a plan
		offsets []int
	}{
		{"a chain", `
  %1 = neg %x : f32[4,8]
  %2 = exp %1 : f32[4,8]
  return %2`, "neg_exp_4x8", nil},
		{"dead ops vanish", `
  %1 = neg %x : f32[4,8]
  %2 = exp %x : f32[4,8]
  return %2`, "neg_exp_4x8", nil},
		{"another shape starts a kernel", `
  %1 = neg %x : f32[4,8]
  %2 = exp %r : f32[8]
  return %1, %2`, "neg_4x8 exp_8", nil},
		{"a product ends a kernel", `
  %1 = neg %x : f32[4,8]
  %2 = matmul %1, %w : f32[4,8]
  %3 = exp %2 : f32[4,8]
  return %3`, "neg_4x8 matmul_4x8x8 exp_4x8", nil},
		{"a view of the group's own value ends it", `
  %1 = neg %x : f32[4,8]
  %2 = reshape %1 {shape=[4, 8]} : f32[4,8]
  %3 = exp %2 : f32[4,8]
  return %3`, "neg_4x8 exp_4x8", nil},
		{"views and constants cost nothing", `
  %1 = constant {dtype=f32, shape=[8], value=2.0} : f32[8]
  %2 = reshape %1 {shape=[1, 8]} : f32[1,8]
  %3 = add %x, %2 : f32[4,8]
  return %3`, "add_4x8", nil},
		{"a constant that something else reads is filled", `
  %1 = constant {dtype=f32, shape=[4, 8], value=2.0} : f32[4,8]
  %2 = matmul %1, %w : f32[4,8]
  return %2`, "fill_4x8 matmul_4x8x8", nil},
		{"prints stand between kernels", `
  %1 = neg %x : f32[4,8]
  print %1 {label="y"}
  %2 = exp %1 : f32[4,8]
  return %2`, "neg_4x8 - exp_4x8", nil},
		{"a result in the exact place of an operand may stay", `
  %1 = matmul %x, %w : f32[4,8]
  %2 = neg %1 : f32[4,8]
  %3 = exp %2 : f32[4,8]
  %4 = matmul %3, %w : f32[4,8]
  return %4`, "matmul_4x8x8 neg_exp_4x8 matmul_4x8x8", []int{0, 512, 0, -1}},
		{"a result over part of an operand may not", `
  %1 = matmul %x, %w : f32[4,8]
  %2 = neg %1 : f32[4,8]
  %3 = exp %2 : f32[4,8]
  %4 = matmul %3, %w : f32[4,8]
  return %4`, "matmul_4x8x8 neg_4x8 exp_4x8 matmul_4x8x8", []int{0, 512, 64, -1}},
		{"a result over a broadcast operand may not", `
  %1 = sum %x {axes=[0]} : f32[8]
  %2 = add %x, %1 : f32[4,8]
  %3 = exp %2 : f32[4,8]
  %4 = matmul %3, %w : f32[4,8]
  return %4`, "sum_4x8 add_4x8 exp_4x8 matmul_4x8x8", []int{0, 512, 0, -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The result types stand behind the colons of what is returned.
			body, returned, _ := strings.Cut(c.body, "return ")
			var results []string
			for _, v := range strings.Split(returned, ", ") {
				_, line, _ := strings.Cut(body, v+" = ")
				line, _, _ = strings.Cut(line, "\n")
				results = append(results, line[strings.LastIndex(line, " : ")+3:])
			}
			text := "module test\nfunc @f(%x: f32[4,8], %w: f32[8,8], %r: f32[8]) -> (" + strings.Join(results, ", ") + ") {" + c.body + "\n}\n"
			var place func(f *ir.Func) *plan.Frame
			if c.offsets != nil {
				place = func(f *ir.Func) *plan.Frame {
					frame := &plan.Frame{Func: f, Offsets: make([]int, f.NumValues()), Calls: make([]int, f.NumOps())}
					for i := range frame.Offsets {
						frame.Offsets[i] = -1
					}
					for i, op := range f.Ops {
						frame.Offsets[op.Results[0]] = c.offsets[i]
					}
					return frame
				}
			}
			_, s, done := emitted(t, text, place)
			if got := launched(s, done); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestManyOperands: more inputs than queues make several kernels.
func TestManyOperands(t *testing.T) {
	var head, body strings.Builder
	for i := range 12 {
		fmt.Fprintf(&head, "%%x%d: f32[40], ", i)
	}
	last := "%x0"
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&body, "  %%%d = add %s, %%x%d : f32[40]\n", i, last, i)
		last = fmt.Sprintf("%%%d", i)
	}
	text := fmt.Sprintf("module test\nfunc @f(%s) -> (f32[40]) {\n%s  return %s\n}\n", strings.TrimSuffix(head.String(), ", "), body.String(), last)
	_, s, done := emitted(t, text, nil)
	if len(done.Steps) != 2 {
		t.Errorf("%d kernels: %s", len(done.Steps), launched(s, done))
	}
	for _, step := range done.Steps {
		if len(step.Operands) > maxQueueBuffers+1 {
			t.Errorf("a kernel of %d operands", len(step.Operands))
		}
	}
}
