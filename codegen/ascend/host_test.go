package ascend_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// network has a shared cell, a skip edge over two stages, a bias, a print and a momentum-free optimizer.
const network = `cell Net {
    first = Dense(6, 9)
    second = Dense(9, 9)
    third = Dense(9, 4)
    construct(x) {
        y = relu(first(x))
        z = tanh(second(y)) + y
        print("hidden", z)
        return third(z)
    }
}
train small {
    network = Net()
    loss = CrossEntropyLoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[12, 6]
    input label: i32[12]
    micro_batch_num = 3
    stage_config = { first: 0, second: 1, third: 1 }
    dataset = npz("rows.npz", columns = ["x", "label"]) | batch(12)
}
`

// launchHeader is what the vendor's build makes of a kernel, for the test device.
func launchHeader(k emulator.Kernel) string {
	var types, names, words, values []string
	for i, p := range k.Parameters {
		typ, value := "uint8_t*", fmt.Sprintf("reinterpret_cast<uint8_t*>(w[%d])", i)
		switch p {
		case emulator.Float32:
			typ, value = "float", fmt.Sprintf("AscendC::emulator::FloatOf(uint32_t(w[%d]))", i)
		case emulator.Int32:
			typ, value = "int32_t", fmt.Sprintf("int32_t(w[%d])", i)
		}
		types = append(types, typ)
		names = append(names, fmt.Sprintf("%s a%d", typ, i))
		words = append(words, fmt.Sprintf("Word(a%d)", i))
		values = append(values, value)
	}
	return fmt.Sprintf(`#pragma once
#include "device.h"
extern "C" void %[1]s(%[2]s);
inline uint32_t aclrtlaunch_%[1]s(uint32_t blocks, aclrtStream, %[3]s) {
    static const AscendC::emulator::Kernel kernel = {"%[1]s", %[4]d, [](const uint64_t* w) { %[1]s(%[5]s); }};
    return RunKernel(kernel, blocks, {%[6]s});
}
`, k.Name, strings.Join(types, ", "), strings.Join(names, ", "), len(k.Parameters), strings.Join(values, ", "), strings.Join(words, ", "))
}

func put(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%.4000s", name, err, out)
	}
}

// TestHostProgram builds the emitted host programs of two stages on a device made of the emulator and files, runs them
// as two processes, and compares the losses and weights with the cpu device.
func TestHostProgram(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("g++ is missing")
		}
		t.Skip("g++ is missing")
	}
	const steps, rows, width = 4, 48, 6
	p := compile(t, network, 0)
	out, err := ascend.Generate(p)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, err := plan.Files(p, out.Files)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		put(t, filepath.Join(dir, f.Path), f.Content)
	}

	// The rows, for both sides.
	x, label := make([]float32, rows*width), make([]int32, rows)
	for i := range x {
		x[i] = float32(math.Sin(float64(3 * i)))
	}
	for i := range label {
		label[i] = int32(i * 7 % 4)
	}
	var xBytes, labelBytes []byte
	for _, v := range x {
		xBytes = binary.LittleEndian.AppendUint32(xBytes, math.Float32bits(v))
	}
	for _, v := range label {
		labelBytes = binary.LittleEndian.AppendUint32(labelBytes, uint32(v))
	}
	put(t, filepath.Join(dir, "data", "small.x.bin"), xBytes)
	put(t, filepath.Join(dir, "data", "small.label.bin"), labelBytes)
	archive := filepath.Join(dir, "rows.npz")
	arrays := []data.Array{data.NewFloat32("x", []int{rows, width}, x), {Name: "label", DType: data.I32, Shape: []int{rows}, Data: labelBytes}}
	if err := data.WriteNPZ(archive, arrays); err != nil {
		t.Fatal(err)
	}

	// The reference, and its first values.
	var want []float64
	reference, err := runtime.Run(context.Background(), p, runtime.Options{
		Open: cpu.Open, Steps: steps, Seed: p.Seed, DataPath: archive, Getenv: func(string) string { return "" }, SkipEval: true,
		OnStep: func(s runtime.Step) { want = append(want, s.Loss) }, Log: func(int) io.Writer { return io.Discard },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, param := range p.Module.Params {
		values := make([]float32, param.Type.Elems())
		if err := runtime.Initial(t.Context(), param, p.Seed, values); err != nil {
			t.Fatal(err)
		}
		var b []byte
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		put(t, filepath.Join(dir, "weights", param.Name+".bin"), b)
	}

	var commands []*exec.Cmd
	var outputs []*strings.Builder
	for _, folder := range []string{"messages", "meet", "save"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for stage, program := range out.Stages {
		include := filepath.Join(dir, fmt.Sprintf("stage%d", stage), "launch")
		for _, k := range program.Kernels.Kernels {
			put(t, filepath.Join(include, "aclrtlaunch_"+k.Name+".h"), []byte(launchHeader(k)))
		}
		var all []byte
		for _, s := range program.Kernels.Sources {
			all = append(all, s.Text...)
		}
		put(t, filepath.Join(include, "kernels.cpp"), all)
		exe := filepath.Join(dir, fmt.Sprintf("rank%d", stage))
		command(t, "g++", "-std=c++17", "-O1", "-pthread", "-Itestdata/device", "-Iemulator/include", "-Iemulator/server", "-I"+include, "-I"+filepath.Join(dir, "host"),
			filepath.Join(include, "kernels.cpp"), filepath.Join(dir, fmt.Sprintf("stage%d/host/program.cpp", stage)), filepath.Join(dir, "host/rank.cpp"),
			"testdata/device/device.cpp", "emulator/server/core.cpp", "emulator/server/launch.cpp", "-o", exe)
		c := exec.Command(exe, dir, "-meet", filepath.Join(dir, "meet"), "-data", filepath.Join(dir, "data"), "-weights", filepath.Join(dir, "weights"),
			"-save", filepath.Join(dir, "save"), "-steps", strconv.Itoa(steps), "-log", filepath.Join(dir, fmt.Sprintf("worker_%d.log", stage)))
		c.Env = append(os.Environ(), "DEVICE_MESSAGES="+filepath.Join(dir, "messages"))
		text := &strings.Builder{}
		c.Stdout, c.Stderr = text, text
		commands, outputs = append(commands, c), append(outputs, text)
	}
	for _, c := range commands {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range commands {
		if err := c.Wait(); err != nil {
			t.Errorf("stage %d: %v", i, err)
		}
	}
	text := outputs[0].String() + outputs[1].String()
	losses := regexp.MustCompile(`step: (\d+), loss is (\S+)`).FindAllStringSubmatch(text, -1)
	if len(losses) != steps || len(want) != steps {
		t.Fatalf("%d losses, want %d:\n%s", len(losses), steps, text)
	}
	for i, m := range losses {
		if got, _ := strconv.ParseFloat(m[2], 64); !(math.Abs(got-want[i]) <= 1e-4*want[i]) {
			t.Errorf("step %d: the loss is %v, on the cpu %v", i, got, want[i])
		}
	}
	for _, param := range reference.Params {
		saved, err := os.ReadFile(filepath.Join(dir, "save", param.Name+".bin"))
		if err != nil || len(saved) != 4*len(param.Values) {
			t.Fatalf("%s: %d bytes, %v", param.Name, len(saved), err)
		}
		for k, w := range param.Values {
			if g := math.Float32frombits(binary.LittleEndian.Uint32(saved[4*k:])); !(math.Abs(float64(g-w)) <= 1e-4) {
				t.Fatalf("%s, element %d: %v, on the cpu %v", param.Name, k, g, w)
			}
		}
	}
	shown, _ := os.ReadFile(filepath.Join(dir, "worker_1.log"))
	if n := strings.Count(string(shown), "hidden\nTensor(shape=[4, 9]"); n != steps*3 {
		t.Errorf("%d prints of the hidden layer, want %d:\n%.300s", n, steps*3, shown)
	}
}
