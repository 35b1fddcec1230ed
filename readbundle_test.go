package ppc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// smallBundle is the bundle of a model of two stages that share a parameter, with an evaluation, as files in memory.
func smallBundle(t testing.TB) []plan.File { return smallBundleWith(t, "") }

// smallBundleWith places its cells in another way.
func smallBundleWith(t testing.TB, placement string) []plan.File {
	t.Helper()
	name := filepath.Join("cmd", "ppc", "testdata", "models", "tied.pp")
	src, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if placement != "" {
		src = regexp.MustCompile(`stage_config .*`).ReplaceAll(src, []byte(placement))
	}
	r, err := Compile(context.Background(), Options{File: "tied.pp", Source: src})
	if err != nil {
		t.Fatal(err)
	}
	files, err := plan.Files(r.Plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// withFile is the bundle with one file replaced and its hash made right, so that the checks behind the hashes are met.
func withFile(files []plan.File, index int, content []byte) fstest.MapFS {
	m := fstest.MapFS{}
	for i, f := range files {
		if i == index {
			f.Content = content
		}
		m[f.Path] = &fstest.MapFile{Data: f.Content, Mode: 0o644}
	}
	if files[index].Path != "plan.yaml" {
		before, after := sha256.Sum256(files[index].Content), sha256.Sum256(content)
		old, sum := []byte(hex.EncodeToString(before[:])), []byte(hex.EncodeToString(after[:]))
		m["plan.yaml"].Data = bytes.ReplaceAll(m["plan.yaml"].Data, old, sum)
	}
	return m
}

// readDamaged reads a damaged bundle: it may be refused with a diagnostic, and if it is not, running a step of it may
// fail but ends, without a panic. problem says what is wrong with that, "" for nothing.
func readDamaged(m fstest.MapFS, rows string) (accepted bool, problem string) {
	defer func() {
		if x := recover(); x != nil {
			problem = fmt.Sprintf("panic: %v\n%s", x, debug.Stack())
		}
	}()
	p, err := ReadBundleFS(m, "damaged")
	if err != nil {
		text := Diagnostics(err)[0].Error()
		if !asDiagnostic.MatchString(text) || strings.Contains(text, "is not consistent") || strings.Contains(text, "%!") || goWords.MatchString(text) {
			return false, "not a diagnostic for a user: " + text
		}
		return false, ""
	}
	if _, err := plan.Files(p, nil); err != nil {
		return true, fmt.Sprintf("an accepted bundle cannot be written: %v", err)
	}
	for _, s := range p.Memory[0].Stages {
		if s.Peak > 1<<24 {
			return true, "" // large, and says so
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	o := runtime.Options{Open: cpu.Open, Steps: 1, Seed: p.Seed, DataPath: rows, Log: discard}
	if p.Programs[0].Infer {
		o.Inputs = []data.Array{onesArray(16)}
		if p.Programs[0].Feedback != nil {
			o.Inputs, o.Tokens = []data.Array{prompts([]int32{1, 2}, []int32{3}, []int32{0})}, []int{2, 1, 3}
		}
	}
	_, err = runtime.Run(ctx, p, o)
	switch {
	case ctx.Err() != nil:
		return true, "an accepted bundle hangs"
	case err != nil && strings.Contains(err.Error(), "internal fault"):
		return true, err.Error()
	case err != nil && strings.Contains(err.Error(), "cpu device: "):
		return true, "what the device refuses is accepted: " + err.Error()
	}
	return true, ""
}

var asDiagnostic = regexp.MustCompile(`^damaged: error E090[12]: `)

// goWords are words of the implementation.
var goWords = regexp.MustCompile(`unmarshal|Doc\b|\buint|strconv|: *(\n|$)`)

var words = regexp.MustCompile(`-?[A-Za-z0-9_]+`)

// Every word of every file is replaced, one at a time, by values that do not belong there; of some bundles every third.
func TestReadDamagedBundle(t *testing.T) {
	t.Run("train", func(t *testing.T) { damage(t, smallBundle(t), 1) })
	t.Run("folded", func(t *testing.T) {
		damage(t, smallBundleWith(t, "stage_config = { fc1: 0, act: 1, tail: 1, fc2: 0 }\n    segment_config = { fc1: 0, act: 0, tail: 1, fc2: 1 }\n    accumulate = 2"), 3)
	})
	t.Run("infer", func(t *testing.T) {
		files, err := plan.Files(inferenceOf(t, "micro_batch_num = 4\n    output_broadcast = true", Options{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, files, 1)
	})
	t.Run("buffers", func(t *testing.T) {
		files, err := plan.Files(compileFile(t, Options{File: "t.pp", Source: []byte(smallAverage)}).Plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, files, 3)
	})
	t.Run("shared out", func(t *testing.T) {
		src, err := os.ReadFile(filepath.Join("cmd", "ppc", "testdata", "models", "tied.pp"))
		if err != nil {
			t.Fatal(err)
		}
		src = bytes.Replace(src, []byte("micro_batch_num"), []byte("optimizer_shard = { level: 3, threshold: 0 }\n    micro_batch_num"), 1)
		p := compileFile(t, Options{File: "tied.pp", Source: src, Devices: 4}).Plan
		if !p.Shares(plan.ShardValue) {
			t.Fatal("nothing is shared out")
		}
		files, err := plan.Files(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, files, 3)
	})
	t.Run("generate", func(t *testing.T) { damage(t, generatorBundle(t), 3) })
}

// damage tries one word in so many.
func damage(t *testing.T, files []plan.File, every int) {
	rows := rowsFile(t)
	if ok, problem := readDamaged(withFile(files, 0, files[0].Content), rows); !ok || problem != "" {
		t.Fatal("the bundle itself is refused", problem)
	}
	values := []string{"-1", "0", "", "1", "7", "70368744177664", "x", "99999999999999999999"}
	for i, f := range files {
		t.Run(strings.ReplaceAll(f.Path, "/", "."), func(t *testing.T) {
			t.Parallel()
			text, _, _ := strings.Cut(string(f.Content), "\nhashes:")
			tries, accepted, faults := 0, 0, 0
			for k, at := range words.FindAllStringIndex(text, -1) {
				if k%(every*stride) > 0 {
					continue
				}
				w := values[k%len(values)]
				content := append([]byte(text[:at[0]]+w), f.Content[at[1]:]...)
				ok, problem := readDamaged(withFile(files, i, content), rows)
				tries++
				if ok {
					accepted++
				}
				if problem == "" {
					continue
				}
				t.Errorf("%s:%d: %q became %q: %s", f.Path, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], w, problem)
				if faults++; faults == 10 {
					t.FailNow()
				}
			}
			t.Logf("%d of %d changes do not matter", accepted, tries)
		})
	}
}

func FuzzReadBundle(f *testing.F) { fuzzBundle(f, smallBundle(f)) }

func FuzzReadGenerator(f *testing.F) { fuzzBundle(f, generatorBundle(f)) }

func fuzzBundle(f *testing.F, files []plan.File) {
	for i := range files {
		f.Add(uint8(i), uint16(40), uint8(3), []byte("9"))
		f.Add(uint8(i), uint16(0), uint8(255), []byte{})
	}
	rows := rowsFile(f)
	f.Fuzz(func(t *testing.T, file uint8, offset uint16, remove uint8, insert []byte) {
		i := int(file) % len(files)
		text := files[i].Content
		from := min(int(offset), len(text))
		to := min(from+int(remove), len(text))
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		_, problem := readDamaged(withFile(files, i, bytes.Join([][]byte{text[:from], insert, text[to:]}, nil)), rows)
		goruntime.ReadMemStats(&after)
		if problem != "" {
			t.Error(problem)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%d bytes allocated", n)
		}
	})
}

func discard(int) io.Writer { return io.Discard }

// rowsFile stores rows that fit tied.pp, for a step of two batches.
func rowsFile(t testing.TB) string {
	x := make([]float32, 16*4)
	for i := range x {
		x[i] = float32(i%7) / 7
	}
	name := filepath.Join(t.TempDir(), "data.npz")
	err := data.WriteNPZ(name, []data.Array{
		data.NewFloat32("x", []int{16, 4}, x), {Name: "label", DType: data.I32, Shape: []int{16}, Data: make([]byte, 64)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Action lists are not trusted: one that was edited into two stages that wait for each other is refused, with the actions
// along the cycle.
func TestReadDeadlock(t *testing.T) {
	p := compileFile(t, Options{File: "t.pp", Source: []byte(threeStages)}).Plan
	i := slices.IndexFunc(faults, func(f fault) bool { return f.name == "two stages that wait for each other" })
	if !faults[i].plant(p) {
		t.Fatal("no place")
	}
	files, err := plan.Files(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadBundleFS(withFile(files, 0, files[0].Content), "out")
	list := Diagnostics(err)
	if len(list) != 1 || list[0].Code != diag.BadBundle || strings.Count(list[0].Message, "waits for") != 5 || !strings.Contains(list[0].Message, "F of micro-batch 0 on stage 2") {
		t.Errorf("%v", list)
	}
}

// The peer of an action follows from its message, and so does that there is none.
func TestReadPeers(t *testing.T) {
	for _, peer := range []int{-1, 0, 1, 2, 1 << 20} {
		p := compileFile(t, Options{File: "t.pp", Source: []byte(threeStages)}).Plan
		edited := false
		for s := range p.Programs[0].Actions {
			for i := range p.Programs[0].Actions[s] {
				if a := &p.Programs[0].Actions[s][i]; i%5 == s {
					edited = edited || a.Peer != peer
					a.Peer = peer
				}
			}
		}
		files, err := plan.Files(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = ReadBundleFS(withFile(files, 0, files[0].Content), "out"); !edited || err == nil || !strings.Contains(err.Error(), "has another peer than its message") {
			t.Errorf("peer %d: %v", peer, err)
		}
	}
}
