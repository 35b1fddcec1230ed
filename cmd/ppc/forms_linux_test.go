package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/data"
)

// A form is a way to run the ranks of a program. All of them must store and say the same.
type form struct {
	name  string
	ranks func(n int) []string // the command line up to the flags of run
	also  []string             // what must not change a bit
}

// forms are those beside ppc run: goroutines.
func forms(t *testing.T) []form {
	list := []form{
		{"shared", func(n int) []string { return []string{"ppc", "launch", "-n", fmt.Sprint(n)} }, nil},
		{"socket", func(n int) []string { return []string{"ppc", "launch", "-n", fmt.Sprint(n), "-transport", "socket"} }, []string{"-schedule", "gpipe"}},
	}
	if _, err := exec.LookPath("mpirun"); err == nil {
		return append(list, form{"mpi", func(n int) []string { return []string{"mpirun", "-n", fmt.Sprint(n), "ppc", "worker"} }, nil})
	} else if os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	return list
}

// all trains with everything that makes ranks meet: clipping over all of them, a loss scale that overflows at first, states of
// the optimizer that ranks share out, rows left over in evaluation.
const all = `
const level = 1
const first = 1e38

cell Net {
    fc1 = Dense(4, 256)
    act = ReLU()
    fc2 = Dense(256, 4)
    construct(x) {
        return 1000.0 * fc2(act(fc1(x)))
    }
}

train all {
    network         = Net()
    loss            = MSELoss()
    optimizer       = AdamW(lr = 1e-2)
    input x         : f32[12, 4]
    input y         : f32[12, 4]
    micro_batch_num = 2
    clip_norm       = 0.01
    loss_scale      = { initial: first, window: 200, factor: 1e10 }
    optimizer_shard = { level: level, threshold: 1 }
    dataset         = npz("data.npz", columns = ["x", "x"]) | batch(12)
    epochs          = 12
    eval test {
        dataset = npz("data.npz", columns = ["x", "x"]) | batch(12)
        metrics = { loss: MSELoss() }
    }
}
`

// two has results of two stages.
const two = `
cell Net {
    fc1 = Dense(4, 4) @stage(0)
    fc2 = Dense(4, 4) @stage(1)
    construct(a, b) {
        parity = fc1(a)
        sum = fc2(parity) + b
        return parity, sum
    }
}

infer two {
    network         = Net()
    input a         : f32[8, 4]
    input b         : f32[8, 4]
    micro_batch_num = 2
}
`

// still infers on the rows of a dataset, of which every rank reads all.
const still = `
infer still {
    network          = Sequential([Dense(4, 8) @stage(0), Dense(8, 3) @stage(1)])
    input x          : f32[12, 4]
    micro_batch_num  = 2
    dataset_strategy = full_batch
    dataset          = npz("spike.npz", columns = ["x"]) | batch(12)
}
`

// formsFolder goes to a folder with the models of the table and what they read.
func formsFolder(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copied := func(to, from string, change ...string) {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.NewReplacer(change...).Replace(string(text)))
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copied("small.pp", "testdata/models/small.pp")
	copied("tied.pp", "testdata/models/tied.pp")
	for _, name := range []string{"mnist.pp", "mnist_interleaved.pp", "mnist_auto.pp"} {
		copied(name, filepath.Join(examples, "mnist", name))
	}
	copied("mnist48.pp", filepath.Join(examples, "mnist/mnist.pp"), "f32[32,", "f32[48,", "i32[32]", "i32[48]", "batch(32)", "batch(48)", "batch(160)", "batch(240)")
	copied("vocab.pp", filepath.Join(examples, "inference/vocab.pp"))
	copied("alone.pp", filepath.Join(examples, "inference/vocab.pp"), "output_broadcast = true", "")
	copied("generate.pp", filepath.Join(examples, "gpt/generate.pp"))
	copied("echo.pp", filepath.Join(examples, "gpt/generate.pp"), "return tokens, logits", "return token, tokens, logits")
	copied("tiny.pp", filepath.Join(examples, "gpt/tiny.pp"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // for the kernels of the emulator
	t.Setenv("DATA_PATH", filepath.Join(examples, "mnist/data"))
	t.Chdir(dir)
	// Prompts of different lengths, and more of them than places.
	prompts := make([]int32, 11*4)
	for i := range prompts {
		if prompts[i] = int32(i * 7 % 64); i%4 > i/4%4 {
			prompts[i] = -1
		}
	}
	ints := func(shape []int, v []int32) data.Array {
		a := data.Array{DType: data.I32, Shape: shape}
		for _, x := range v {
			a.Data = binary.LittleEndian.AppendUint32(a.Data, uint32(x))
		}
		return a
	}
	floats := make([]float32, 24*4)
	tokens := make([]int32, 24)
	for i := range floats {
		floats[i], tokens[i/4] = float32(i%17)/16-0.5, int32(i/4%32)
	}
	spike := make([]float32, 36*4)
	copy(spike, floats)
	spike[19*4] = 1e30
	for _, err := range []error{
		data.WriteNPZ("spike.npz", []data.Array{data.NewFloat32("x", []int{36, 4}, spike)}),
		os.WriteFile("all.pp", []byte(all), 0o600), os.WriteFile("two.pp", []byte(two), 0o600), os.WriteFile("still.pp", []byte(still), 0o600), writeRows("data.npz", 20),
		data.WriteNPY(t.Context(), "prompts.npy", ints([]int{11, 4}, prompts)), data.WriteNPY(t.Context(), "ids.npy", ints([]int{24, 1}, tokens)),
		data.WriteNPY(t.Context(), "floats.npy", data.NewFloat32("x", []int{24, 4}, floats)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if code, _, stderr := inProcess("run", "tiny.pp", "-data", filepath.Join(examples, "gpt/data/tokens.npz"), "-steps", "1", "-save", "weights.npz"); code != 0 {
		t.Fatal(stderr)
	}
}

// The table, to which a row is added for what makes ranks meet in another way: what is stored, byte for byte, and what is said of evaluations does not depend on where ranks live, on the transport
// or on the schedule.
func TestForms(t *testing.T) {
	formsFolder(t)
	train := []string{"-log", "OUT.jsonl", "-log-norms", "-save", "OUT.npz"}
	infer := []string{"-input", "ids.npy", "-output", "OUT.npy"}
	pair := []string{"-input", "a=floats.npy", "-input", "b=floats.npy", "-output", "sum=OUT.sum.npy", "-output", "parity=OUT.parity.npy"}
	generate := []string{"-init", "weights.npz", "-input", "prompts.npy", "-tokens", "10", "-output", "OUT.npy", "-output", "logits=OUT.logits.npy"}
	for _, c := range []struct {
		program string // file and what shapes it
		ranks   int
		flags   []string // OUT stands for the form
		says    string   // of every form
	}{
		{"mnist.pp -steps 4", 8, train, `test: accuracy .* on 2080 rows`},
		{"mnist.pp -steps 4", 4, train, `test: accuracy .* on 2080 rows`},
		{"mnist_auto.pp -stages 4 -steps 2", 8, train, `test: accuracy`},
		{"mnist48.pp -steps 4", 6, train, `test: accuracy .* on 2080 rows`},
		{"mnist_interleaved.pp -steps 4", 4, train, `test: accuracy`},
		{"tied.pp -check-copies", 4, train, `test: accuracy .* on 20 rows`},
		{"small.pp -device emulator -steps 1", 2, train, `test: accuracy .* on 20 rows`},
		{"all.pp -stages 2", 6, train, `(?s)step: \d+ is skipped: a gradient is not finite.*test: loss .* on 20 rows`},
		{"all.pp -stages 2 -set level=2", 6, train, `(?s)step: \d+ is skipped: a gradient is not finite.*test: loss .* on 20 rows`},
		{"all.pp -stages 2 -set level=3 -check-copies", 6, train, `(?s)step: \d+ is skipped: a gradient is not finite.*test: loss .* on 20 rows`},
		// One row of one rank is what no gradient can hold: no rank updates in that step, and all do in the next.
		{"all.pp -stages 2 -set first=16 -data spike.npz", 6, train, `(?s)epoch: 0 step: 1 is skipped.*epoch: 11 step: 1 is skipped: a gradient is not finite at the loss scale 1\n`},
		{"vocab.pp", 4, infer, `24 rows in 3 batches`},
		{"vocab.pp", 8, infer, `24 rows in 3 batches`},
		{"alone.pp -micro 2", 8, infer, `on ranks 6, 7`},
		{"two.pp", 8, pair, `parity: f32\[24 4\] on ranks 0, 1, 2, 3 .*\nsum: f32\[24 4\] on ranks 4, 5, 6, 7`},
		{"still.pp", 6, infer[2:], `36 rows in 3 batches`},
		{"generate.pp -stages 4", 4, generate, `11 requests, 110 new tokens in 23 rounds`},
		{"generate.pp", 2, generate, `11 requests, 110 new tokens in 23 rounds`},
		{"echo.pp -stages 2", 4, generate, `(?s)token: .* on ranks 0, 1 .*logits: .* on ranks 2, 3 `},
	} {
		t.Run(fmt.Sprintf("%s on %d", c.program, c.ranks), func(t *testing.T) {
			line := func(f form) []string {
				out := append(strings.Fields(c.program), "-log-dir", "log."+f.name)
				for _, s := range append(f.also, c.flags...) {
					out = append(out, strings.ReplaceAll(s, "OUT", f.name))
				}
				return out
			}
			says := regexp.MustCompile(c.says)
			code, stdout, stderr := inProcess(append([]string{"run", "-devices", fmt.Sprint(c.ranks)}, line(form{name: "run"})...)...)
			if code != 0 || !says.MatchString(stdout) {
				t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
			}
			metrics := regexp.MustCompile(`(?m)^test: .*$`)
			want := metrics.FindString(stdout)
			for _, f := range forms(t) {
				stdout, err := command(t, append(f.ranks(c.ranks), line(f)...)...)
				if err != nil || !says.MatchString(stdout) || metrics.FindString(stdout) != want {
					t.Fatalf("%s: %v\n%s", f.name, err, stdout)
				}
				for _, flag := range c.flags {
					_, file, ok := strings.Cut(flag, "OUT")
					if !ok {
						continue
					}
					a, err := os.ReadFile("run" + file)
					if err != nil {
						t.Fatal(err)
					}
					b, err := os.ReadFile(f.name + file)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(a, b) {
						t.Errorf("%s: other bytes in %s than with ppc run", f.name, file)
					}
				}
			}
		})
	}
	left, err := filepath.Glob(".ppc-*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// command runs a command to its end and returns what it prints.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
