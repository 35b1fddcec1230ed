package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// endless is a training that does not end by itself.
const endless = `
const width = 24

train endless {
    network = Sequential([Dense(4, width) @stage(0), ReLU() @stage(0), Dropout(0.1) @stage(1), Dense(width, width) @stage(1), ReLU() @stage(1), Dense(width, 3) @stage(1)])
    loss = CrossEntropyLoss()
    optimizer = Adam(lr = 0.001)
    input x: f32[8, 4]
    input label: i32[8]
    micro_batch_num = 2
    optimizer_shard = { level: 1, threshold: 1 }
    epochs = 1000000000
    dataset = npz("data.npz") | batch(8)
}
`

// wide is the same with checkpoints of some hundred kilobytes.
var wide = strings.Replace(endless, "width = 24", "width = 200", 1)

// folderWith goes to a new folder with a program and data.npz for it.
func folderWith(t *testing.T, name, program string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile(name, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeRows("data.npz", 20); err != nil {
		t.Fatal(err)
	}
}

// inProcess runs the command in this process.
func inProcess(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	a := &app{out: &output{w: &out}, err: &err, sources: map[string][]byte{}}
	code = a.run(context.Background(), append([]string{"ppc"}, args...))
	return code, out.String(), err.String()
}

// A run that saves after every step is killed again and again, and goes on each time: no checkpoint that was complete is ever
// lost but for those that are not to be kept, and at the end the run is the one that was never stopped.
func TestKilledWhileSaving(t *testing.T) {
	folderWith(t, "wide.pp", wide)
	random := rand.New(rand.NewPCG(1, 2))
	seen := 0
	for kill := range 12 {
		args := []string{"run", "wide.pp", "-devices", "4", "-checkpoint", "ck", "-save-every", "1", "-keep", "2"}
		if kill > 0 {
			args = append(args, "-resume", "ck")
		}
		c := exec.Command("ppc", args...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if steps, err := checkpoint.Steps("ck"); err == nil && len(steps) > 0 && steps[0] > seen {
				break
			}
			if time.Now().After(limit) {
				c.Process.Kill()
				t.Fatalf("no step in a minute: %s", stderr.String())
			}
		}
		time.Sleep(time.Duration(random.IntN(30_000)) * time.Microsecond)
		steps, err := checkpoint.Steps("ck")
		if err != nil || len(steps) == 0 {
			t.Fatal(steps, err)
		}
		seen = steps[0]
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if c.Wait(); c.ProcessState.Success() {
			t.Fatal("the run has ended by itself")
		}
		found, err := checkpoint.Find("ck", func(s string) { t.Errorf("kill %d: %s", kill, s) })
		if err != nil {
			t.Fatalf("kill %d after step %d: %v", kill, seen, err)
		}
		found.Close()
		if found.Step < seen {
			t.Fatalf("kill %d: step %d was complete, now the last is %d", kill, seen, found.Step)
		}
		seen = found.Step
	}
	total := fmt.Sprint(seen + 3)
	if code, _, stderr := inProcess("run", "wide.pp", "-devices", "4", "-resume", "ck", "-checkpoint", "ck", "-keep", "1", "-steps", total, "-save", "a.safetensors"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := inProcess("run", "wide.pp", "-devices", "4", "-steps", total, "-save", "b.safetensors"); code != 0 {
		t.Fatal(stderr)
	}
	a, errA := os.ReadFile("a.safetensors")
	b, errB := os.ReadFile("b.safetensors")
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("after %s steps the parameters differ from those of a run that was not killed: %v %v", total, errA, errB)
	}
	list, err := os.ReadDir("ck")
	if err != nil || len(list) != 1 || list[0].Name() != "step-"+total {
		t.Errorf("left over: %v, %v", list, err)
	}
}

// A write that fails half-way, here at the limit for the size of a file, ends the run with the reason; the checkpoint before stays,
// nothing half-written is left, and the run can go on.
func TestFailedWrite(t *testing.T) {
	folderWith(t, "wide.pp", wide)
	for _, devices := range []string{"2", "4"} {
		if err := os.RemoveAll("ck"); err != nil {
			t.Fatal(err)
		}
		args := "run wide.pp -devices " + devices + " -checkpoint ck"
		if code, _, stderr := inProcess(strings.Fields(args + " -steps 2")...); code != 0 {
			t.Fatal(stderr)
		}
		out, err := exec.Command("sh", "-c", "trap '' XFSZ; ulimit -f 100; exec ppc "+args+" -resume ck -steps 4").CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(string(out), "E1002") || !strings.Contains(string(out), "file too large") {
			t.Errorf("%v: %s", err, out)
		}
		leavesStep2(t, "ck")
	}
}

// leavesStep2 holds that a folder has the checkpoint after two steps, whole, and nothing else.
func leavesStep2(t *testing.T, dir string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 || list[0].Name() != "step-2" {
		t.Errorf("left over: %v, %v", list, err)
	}
	if code, _, stderr := inProcess("run", "wide.pp", "-resume", dir, "-steps", "4"); code != 0 || !strings.Contains(stderr, "2 steps are left") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// Numbers that f32 cannot hold are refused wherever values come in; infinities that are there on purpose stay.
func TestBeyondFloat32(t *testing.T) {
	folderWith(t, "wide.pp", wide)
	model := "infer m {\n    network = Dense(2, 1, bias = false)\n    input x: f32[1, 2]\n}\n"
	if err := os.WriteFile("m.pp", []byte(model), 0o644); err != nil {
		t.Fatal(err)
	}
	doubles := func(name string, shape []int, values ...float64) data.Array {
		a := data.Array{Name: name, DType: data.F64, Shape: shape}
		for _, v := range values {
			a.Data = binary.LittleEndian.AppendUint64(a.Data, math.Float64bits(v))
		}
		return a
	}
	for _, c := range []struct {
		value float64
		code  int
	}{{3.4e38, 0}, {math.Inf(-1), 0}, {1e39, 1}, {-1e300, 1}} {
		w, x := doubles("weight", []int{1, 2}, 1, c.value), doubles("x", []int{1, 2}, 0, c.value)
		ones := data.NewFloat32("x", []int{1, 2}, []float32{1, 1})
		for _, err := range []error{data.WriteNPZ("w.npz", []data.Array{w}), data.WriteSafetensors("w.safetensors", []data.Array{w}), data.WriteNPY(t.Context(), "x.npy", x), data.WriteNPY(t.Context(), "ones.npy", ones)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{
			{"-input", "ones.npy", "-init", "w.npz"}, {"-input", "ones.npy", "-init", "w.safetensors"}, {"-input", "x.npy"},
		} {
			code, _, stderr := inProcess(append([]string{"run", "m.pp"}, args...)...)
			if code != c.code || c.code == 1 && (!strings.Contains(stderr, "E0802") || !strings.Contains(stderr, "element 1 is ")) {
				t.Errorf("%v with %v: exit code %d: %s", args, c.value, code, stderr)
			}
		}
	}
}
