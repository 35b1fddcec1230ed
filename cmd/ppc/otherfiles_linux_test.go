package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
)

// Ranks whose hosts, here folders, have other files under the same names are told apart, by what differs; copies are the same.
func TestHostsWithOtherFiles(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no mpirun")
	}
	t.Setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
	t.Setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
	t.Setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
	folderWith(t, "endless.pp", endless)
	infers := regexp.MustCompile(`(?s)train endless.*`).ReplaceAllString(endless, "infer m {\n    network = Sequential([Dense(4, width) @stage(0), Dense(width, 3) @stage(1)])\n    input x: f32[4, 4]\n}\n")
	if err := os.WriteFile("infers.pp", []byte(infers), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, dir := range []string{"one", "two"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		x := data.NewFloat32("x", []int{4, 4}, make([]float32, 16))
		x.Data[2] = byte(i) << 6
		arrays, err := data.ReadNPZ("data.npz")
		if err != nil {
			t.Fatal(err)
		}
		arrays[0].Data[2] ^= byte(i) << 6
		if err := data.WriteNPZ(dir+"/data.npz", arrays); err != nil {
			t.Fatal(err)
		}
		if err := data.WriteNPY(t.Context(), dir+"/x.npy", x); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"w.npz", "w.safetensors"} {
			line := []string{"run", "endless.pp", "-devices", "2", "-steps", "1", "-save", dir + "/" + name, "-checkpoint", dir + "/" + name + ".ck", "-data", dir + "/data.npz", "-log-dir", dir}
			if code, _, stderr := inProcess(line...); code != 0 {
				t.Fatal(stderr)
			}
		}
	}
	for _, c := range []struct{ args, says string }{
		{"../endless.pp -devices 2 -data data.npz", "the data of block endless"},
		{"../endless.pp -devices 2 -data ../data.npz -init w.npz", "the first values"},
		{"../endless.pp -devices 2 -data ../data.npz -init w.safetensors", "the first values"},
		{"../endless.pp -devices 2 -data ../data.npz -init w.npz.ck", "the first values"},
		{"../endless.pp -devices 2 -data ../data.npz -resume w.npz.ck", "the checkpoint that the run goes on from"},
		{"../infers.pp -devices 2 -input x.npy", "the inputs"},
		{"../endless.pp -devices 2 -data ../one/data.npz -init ../one/w.npz", ""},
	} {
		if !strings.Contains(c.args, "-input") {
			c.args += " -steps 2"
		}
		rank := func(dir string) []string {
			return append([]string{"-n", "1", "-wdir", dir, "ppc", "worker"}, strings.Fields(c.args)...)
		}
		out, err := exec.Command("mpirun", append(append(rank("one"), ":"), rank("two")...)...).CombinedOutput()
		if (err == nil) != (c.says == "") || !strings.Contains(string(out), "have read different files for "+c.says) && c.says != "" {
			t.Errorf("%s: %v: %s", c.args, err, out)
		}
	}
}
