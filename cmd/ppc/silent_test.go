package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// values are what each flag is tried with; "" for one that takes none.
var values = map[string]string{
	"stages": "2", "micro": "2", "accumulate": "2", "schedule": "gpipe", "w-lag": "0", "target": "none", "block": "small", "set": "width=4", "layout": "1,1",
	"unsplit": "", "lazy-inline": "off", "seed": "3", "json": "", "o": "out.bundle", "stats": "", "data": "data.npz", "steps": "1", "epochs": "1",
	"device": "cpu", "cpu": "generic", "reduction": "mean", "init": "first.npz", "save": "last.npz", "log": "steps.jsonl", "log-norms": "",
	"check-copies": "", "log-dir": "logs", "deadline": "9s", "devices": "2", "tokens": "3", "checkpoint": "states", "save-every": "1", "keep": "2", "resume": "states", "input": "x.npy", "output": "y.npy", "sweep": "", "to": "list", "layers": "4",
	"chunks": "1", "n": "2", "transport": "socket", "emit": "slurm", "d": "", "after": "autodiff",
}

// No command ends silently, whatever its flags: one that succeeds prints what it did (fmt, as is usual, says nothing), one that
// fails prints why. Every flag is tried alone and with every other flag of its command.
func TestNoSilentExit(t *testing.T) {
	models, err := filepath.Glob("testdata/models/*.pp")
	if err != nil || len(models) == 0 {
		t.Fatal("no models", err)
	}
	dir := t.TempDir()
	for _, m := range models {
		text, err := os.ReadFile(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(m)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeRows(filepath.Join(dir, "data.npz"), 20); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	runs, failures := 0, 0
	try := func(args ...string) {
		var stdout, stderr bytes.Buffer
		a := &app{out: &output{w: &stdout}, err: &stderr, sources: map[string][]byte{}}
		code := a.run(context.Background(), append([]string{"ppc"}, args...))
		runs++
		line := strings.Join(args, " ")
		if code == 0 && stdout.Len() == 0 && args[0] != "fmt" {
			t.Errorf("ppc %s: done, and nothing is printed", line)
		}
		if code != 0 {
			failures++
			if stderr.Len() == 0 {
				t.Errorf("ppc %s: exit code %d without a reason", line, code)
			}
		}
		if strings.Contains(line+" ", " -json ") && !json.Valid(stdout.Bytes()) {
			t.Errorf("ppc %s: no JSON: %s", line, stdout.String())
		}
	}
	a := &app{}
	for _, c := range a.root().Commands {
		var flags [][]string
		for _, f := range c.Flags {
			name := f.Names()[0]
			v, ok := values[name]
			if !ok {
				t.Errorf("ppc %s -%s is not tried", c.Name, name)
			}
			flag := []string{"-" + name}
			if v != "" {
				flag = append(flag, v)
			}
			flags = append(flags, flag)
		}
		for _, base := range positional(c) {
			command := append([]string{c.Name}, base...)
			try(command...)
			for i, f := range flags {
				try(append(command, f...)...)
				for _, g := range flags[i+1:] {
					if c.Name == "launch" && len(base) > 0 {
						break // starts processes, for what run does with the same flags
					}
					if f[0] == "-sweep" || g[0] == "-sweep" {
						continue // takes long, and says so when something fixes what it goes over
					}
					try(append(append(command, f...), g...)...)
				}
			}
		}
	}
	if runs < 400 || failures < 50 {
		t.Errorf("%d runs, %d of them failed", runs, failures)
	}
}

// positional gives what stands behind a command: nothing, and what it wants.
func positional(c *cli.Command) [][]string {
	switch c.Name {
	case "layout":
		return [][]string{nil, {"2,2"}}
	case "version", "help", "completion":
		return [][]string{nil}
	case "run", "compile", "verify", "launch":
		return [][]string{nil, {"small.pp"}, {"nowhere.pp"}}
	}
	return [][]string{nil, {"small.pp"}}
}
