package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ppc-lang/ppc/data"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata/script")

func TestMain(m *testing.M) {
	if os.Getenv("PPC_LAUNCHED") != "" { // launch starts its own program again
		main()
	}
	testscript.Main(m, map[string]func(){"ppc": main})
}

// TestScripts runs testdata/script/*.txtar. Each starts in a folder with the models of testdata/models and data.npz;
// MNIST is the folder of the example.
func TestScripts(t *testing.T) {
	mnist, err := filepath.Abs("../../examples/mnist")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("MNIST", mnist)
			env.Setenv("GPT", filepath.Join(filepath.Dir(mnist), "gpt"))
			models, err := filepath.Glob("testdata/models/*.pp")
			if err != nil {
				return err
			}
			for _, m := range models {
				text, err := os.ReadFile(m)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(env.WorkDir, filepath.Base(m)), text, 0o644); err != nil {
					return err
				}
			}
			return writeRows(filepath.Join(env.WorkDir, "data.npz"), 20)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "object": object, "npz": npz, "npy": npy, "truncate": truncate, "flip": flip, "replace": replace, "nobody": nobody,
		},
	})
}

// writeRows stores rows of four features and a class.
func writeRows(name string, rows int) error {
	x := make([]float32, rows*4)
	label := make([]byte, rows*4) // little-endian i32
	for r := range rows {
		class := r % 3
		label[4*r] = byte(class)
		for c := range 4 {
			x[4*r+c] = float32((r*7+c*5)%11)/11 - 0.5
		}
		x[4*r+class]++
	}
	return data.WriteNPZ(name, []data.Array{
		data.NewFloat32("x", []int{rows, 4}, x), {Name: "label", DType: data.I32, Shape: []int{rows}, Data: label},
	})
}

// exits runs a command and wants an exit code: exits CODE COMMAND [ARGUMENT]...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARGUMENT]...")
	}
	want(ts, args[0], ts.Exec(args[1], args[2:]...))
	for _, stream := range []string{"stdout", "stderr"} {
		noLeaks(ts, ts.ReadFile(stream))
	}
}

func want(ts *testscript.TestScript, code string, err error) {
	got := 0
	var e *exec.ExitError
	switch {
	case errors.As(err, &e):
		got = e.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(got) != code {
		ts.Fatalf("exit code %d, want %s", got, code)
	}
}

// TestCannotWrite holds that an error which is a diagnostic already is not wrapped in a second one.
func TestCannotWrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "missing", "w.npz")
	for _, err := range []error{data.WriteNPZ(name, nil), os.WriteFile(name, nil, 0o600)} {
		if text := cannotWrite(name, err).Error(); strings.Count(text, name) != 1 || strings.Count(text, "E1002") != 1 {
			t.Error(text)
		}
	}
}

// noLeaks holds that what a user sees names no Go types, packages or stack.
func noLeaks(ts *testscript.TestScript, text string) {
	for _, s := range []string{"goroutine ", "panic", "runtime error", "strconv.", "%!", "*diag.", "plan.", "[]int", "map[", "<nil>", "E1101"} {
		if i := strings.Index(strings.ReplaceAll(text, "plan.yaml", ""), s); i >= 0 {
			ts.Fatalf("the output shows %q:\n%s", s, text)
		}
	}
}

// object wants exactly one JSON object on the last command's stdout, with the given keys: object KEY...
func object(ts *testscript.TestScript, neg bool, args []string) {
	text := ts.ReadFile("stdout")
	dec := json.NewDecoder(strings.NewReader(text))
	var fields map[string]json.RawMessage
	ts.Check(dec.Decode(&fields))
	if _, err := dec.Token(); err != io.EOF {
		ts.Fatalf("more than one object on stdout:\n%s", text)
	}
	for _, k := range args {
		if _, ok := fields[k]; ok == neg {
			ts.Fatalf("key %q: present is %t\n%s", k, ok, text)
		}
	}
}

// npz writes zeros: npz FILE NAME=4,8...; a name that ends in ! is i32, else f32.
func npz(ts *testscript.TestScript, _ bool, args []string) {
	var arrays []data.Array
	for _, a := range args[1:] {
		name, dims, _ := strings.Cut(a, "=")
		shape, n := []int{}, 1
		for d := range strings.SplitSeq(dims, ",") {
			k, err := strconv.Atoi(d)
			ts.Check(err)
			shape = append(shape, k)
			n *= k
		}
		x := data.NewFloat32(name, shape, make([]float32, n))
		if s, ok := strings.CutSuffix(name, "!"); ok {
			x.Name, x.DType = s, data.I32
		}
		arrays = append(arrays, x)
	}
	ts.Check(data.WriteNPZ(ts.MkAbs(args[0]), arrays))
}

// npy writes an array of small numbers, npy FILE i32 4,8, or of those that are given behind it, npy FILE i32 2 7,-1. It
// holds that a file is one of that type and shape and not zero: ! npy FILE f32 4,8.
func npy(ts *testscript.TestScript, check bool, args []string) {
	want := data.Array{DType: map[string]data.DType{"f32": data.F32, "i32": data.I32, "i64": data.I64}[args[1]]}
	n := want.DType.Size()
	for d := range strings.SplitSeq(args[2], ",") {
		k, err := strconv.Atoi(d)
		ts.Check(err)
		want.Shape = append(want.Shape, k)
		n *= k
	}
	file := ts.MkAbs(args[0])
	if !check {
		want.Data = make([]byte, n)
		for i := 0; i < n; i += want.DType.Size() {
			want.Data[i] = byte(i / want.DType.Size() % 8)
		}
		if len(args) > 3 {
			want.Data = want.Data[:0]
			for s := range strings.SplitSeq(args[3], ",") {
				k, err := strconv.Atoi(s)
				ts.Check(err)
				want.Data = binary.LittleEndian.AppendUint32(want.Data, uint32(k))
			}
		}
		ts.Check(data.WriteNPY(context.Background(), file, want))
		return
	}
	got, err := data.ReadNPY(file)
	ts.Check(err)
	if got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) || bytes.Equal(got.Data, make([]byte, n)) {
		ts.Fatalf("%s is %s%v", args[0], got.DType, got.Shape)
	}
}

// truncate keeps the first bytes of a file: truncate FILE BYTES.
func truncate(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// flip inverts a byte of a file, from the end if negative: flip FILE OFFSET.
func flip(ts *testscript.TestScript, _ bool, args []string) {
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	i, err := strconv.Atoi(args[1])
	ts.Check(err)
	if i < 0 {
		i += len(b)
	}
	b[i] ^= 0xff
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o644))
}

// replace changes the first occurrence of a text in a file: replace FILE OLD NEW.
func replace(ts *testscript.TestScript, _ bool, args []string) {
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	if !bytes.Contains(b, []byte(args[1])) {
		ts.Fatalf("%s has no %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), bytes.Replace(b, []byte(args[1]), []byte(args[2]), 1), 0o644))
}

// nobody runs ppc without the rights of root, which permissions do not stop: nobody CODE ARGUMENT... It needs the stderr
// of the command to hold "permission denied".
func nobody(ts *testscript.TestScript, _ bool, args []string) {
	path, err := exec.LookPath(filepath.Join(strings.Split(ts.Getenv("PATH"), string(filepath.ListSeparator))[0], "ppc"))
	ts.Check(err)
	c := exec.Command(path, args[1:]...)
	c.Dir = ts.MkAbs(".")
	if os.Geteuid() == 0 {
		for _, dir := range []string{filepath.Dir(path), c.Dir} {
			for d := dir; strings.HasPrefix(d, os.TempDir()+string(filepath.Separator)); d = filepath.Dir(d) {
				if st, err := os.Stat(d); err == nil && st.Mode().Perm()&0o005 != 0o005 {
					ts.Check(os.Chmod(d, st.Mode().Perm()|0o055))
				}
			}
		}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	want(ts, args[0], c.Run())
	if !strings.Contains(stderr.String(), "permission denied") {
		ts.Fatalf("stderr: %s", stderr.String())
	}
}
