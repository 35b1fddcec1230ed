package ppc

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

var update = flag.Bool("update", false, "rewrite the expected sections of testdata")

// TestGoldens compares what a pass makes: testdata/golden/PASS/CASE.txtar holds a model, in its comment a line
// "options: ..." and the expected section, which is the IR, or the actions for schedule, or the memory for memplan.
// The IR after every pass must parse back to the same text.
func TestGoldens(t *testing.T) {
	names, err := filepath.Glob("testdata/golden/*/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, name := range names {
		pass := filepath.Base(filepath.Dir(name))
		t.Run(pass+"/"+strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			o := goldenOptions(t, string(archive.Comment))
			o.File, o.Source, o.Verify = archive.Files[0].Name, archive.Files[0].Data, true
			after := ""
			o.Dump = func(p, text string) {
				m, err := ir.Parse(text)
				if err != nil {
					t.Errorf("the IR after %s does not parse: %v", p, err)
				} else if d := cmp.Diff(text, m.String()); d != "" {
					t.Errorf("the IR after %s parses to another text: %s", p, d)
				}
				if p == pass {
					after = text
				}
			}
			r, err := Compile(context.Background(), o)
			if err != nil {
				t.Fatal(Diagnostics(err))
			}
			section := "ir"
			switch pass {
			case "schedule":
				section, after = "actions", actionText(r.Plan)
			case "memplan":
				section, after = "memory", memoryText(r.Plan)
			}
			compareSection(t, name, archive, section, after)
		})
	}
}

// compareSection compares the section of that name behind the model, or rewrites it.
func compareSection(t *testing.T, name string, archive *txtar.Archive, section, got string) {
	t.Helper()
	if got == "" {
		t.Fatal("nothing to compare")
	}
	if *update {
		archive.Files = append(archive.Files[:1:1], txtar.File{Name: section, Data: []byte(got)})
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if len(archive.Files) != 2 || archive.Files[1].Name != section {
		t.Fatalf("%s wants a section %s behind the model", name, section)
	}
	if d := cmp.Diff(string(archive.Files[1].Data), got); d != "" {
		t.Errorf("%s (-update rewrites): %s", name, d)
	}
}

// goldenOptions reads "options: stages=2 schedule=gpipe micro=4 w-lag=0 lazy-inline=off".
func goldenOptions(t *testing.T, comment string) (o Options) {
	t.Helper()
	_, text, _ := strings.Cut(comment, "options:")
	text, _, _ = strings.Cut(text, "\n")
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		switch {
		case key == "stages" && err == nil:
			o.Stages = n
		case key == "micro" && err == nil:
			o.Micro = n
		case key == "devices" && err == nil:
			o.Devices = n
		case key == "w-lag" && err == nil:
			o.WLag = &n
		case key == "schedule":
			o.Schedule = value
		case key == "lazy-inline":
			o.LazyInline = value
		case key == "unsplit":
			o.Unsplit = true
		case key == "target":
			o.Target = value
		case key == "block":
			o.Block = value
		case strings.HasPrefix(key, "set:"):
			if o.Set == nil {
				o.Set = map[string]string{}
			}
			o.Set[strings.TrimPrefix(key, "set:")] = value
		default:
			t.Fatalf("unknown option %q", word)
		}
	}
	return o
}

// actionText prints the actions of the block, one stage a line.
func actionText(p *plan.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "schedule %s, lag of weight passes %d\n", p.Schedule, p.WLag)
	for s, list := range p.Programs[0].Actions {
		fmt.Fprintf(&b, "stage %d:", s)
		for _, a := range list {
			b.WriteString(" " + a.Kind.String())
			if a.Kind != plan.Update {
				fmt.Fprint(&b, a.Micro)
			}
			if !a.Kind.IsCompute() {
				fmt.Fprintf(&b, ">%d", a.Peer)
			}
		}
		b.WriteString("\n")
	}
	for _, m := range p.Programs[0].Messages {
		fmt.Fprintf(&b, "message %d: chunk %d to %d, backward %t, window %d:", m.ID, m.From, m.To, m.Backward, m.Window)
		for _, x := range m.Tensors {
			fmt.Fprintf(&b, " %s %s", x.Name, x.Type)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// memoryText prints the bytes of every stage by class, and the areas they come from.
func memoryText(p *plan.Plan) string {
	var b strings.Builder
	for _, m := range p.Memory {
		for s, sm := range m.Stages {
			fmt.Fprintf(&b, "%s stage %d: peak %d\n", m.Device, s, sm.Peak)
			for i, c := range plan.Classes {
				if sm.ByClass[i] > 0 {
					fmt.Fprintf(&b, "  %s %d\n", c, sm.ByClass[i])
				}
			}
			for i, a := range p.Stages[s].Areas {
				fmt.Fprintf(&b, "  area %d: %s %s of program %d, %d slots of %d bytes:", i, a.Class, a.Lifetime, a.Program, a.Slots, sm.SlotBytes[i])
				for k, it := range a.Items {
					fmt.Fprintf(&b, " %s@%d", it.Name, sm.Offsets[i][k])
				}
				b.WriteString("\n")
			}
		}
	}
	return b.String()
}

// The same input gives the same bytes: one after the other, and at the same time.
func TestSameInputSameBytes(t *testing.T) {
	for _, o := range []Options{
		{File: "examples/mnist/mnist.pp"},
		{File: "examples/mnist/mnist_auto.pp", Stages: 4, Micro: 8},
		{File: "cmd/ppc/testdata/models/model.pp", Stages: 3, Schedule: "gpipe"},
	} {
		src, err := os.ReadFile(o.File)
		if err != nil {
			t.Fatal(err)
		}
		o.Source = src
		const runs = 6
		texts := make([][]byte, runs)
		build := func(i int) {
			r, err := Compile(context.Background(), o)
			if err != nil {
				t.Error(err)
				return
			}
			files, err := plan.Files(r.Plan, nil)
			if err != nil {
				t.Error(err)
			}
			for _, f := range files {
				texts[i] = append(texts[i], "-- "+f.Path+" --\n"...)
				texts[i] = append(texts[i], f.Content...)
			}
		}
		build(0)
		build(1)
		var wg sync.WaitGroup
		for i := 2; i < runs; i++ {
			wg.Go(func() { build(i) })
		}
		wg.Wait()
		for i := 1; i < runs; i++ {
			if len(texts[i]) == 0 || !bytes.Equal(texts[0], texts[i]) {
				t.Errorf("%s: compilation %d gives other bytes: %s", o.File, i, cmp.Diff(string(texts[0]), string(texts[i])))
			}
		}
	}
}
