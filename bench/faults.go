//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/internal/faults"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// faultModel has checkpoints of some hundred kilobytes.
const faultModel = `
train faulty {
    network = Sequential([Dense(16, 160) @stage(0), ReLU() @stage(0), Dropout(0.1) @stage(1), Dense(160, 160) @stage(1), ReLU() @stage(1), Dense(160, 4) @stage(1)])
    loss = CrossEntropyLoss()
    optimizer = Adam(lr = 0.001)
    input x: f32[16, 16]
    input label: i32[16]
    micro_batch_num = 4
    optimizer_shard = { level: 1, threshold: 1 }
    epochs = 1000
    dataset = npz("data.npz") | batch(16)
}
`

const (
	faultSteps    = 300
	faultDeadline = 3 * time.Second
	faultPatience = 60 * time.Second // a run that lasts longer does not end
)

// faultKind is what can happen to a run.
type faultKind struct {
	name  string
	forms []faults.Form
	plant func(r *faults.Run, pid int, pids []int, random *rand.Rand) error
	says  string // on stderr, unless the run ends well; %d is the rank
	// What is half-written may wait for the next run: who would remove it is dead, or cannot.
	dead bool
}

var separate = faults.Forms[1:]

func each(pids []int, do func(pid int) error) error {
	for _, pid := range pids {
		if err := do(pid); err != nil {
			return err
		}
	}
	return nil
}

var faultKinds = []faultKind{
	{name: "rank killed", forms: separate, says: `rank %d `, plant: func(_ *faults.Run, pid int, _ []int, _ *rand.Rand) error { return syscall.Kill(pid, syscall.SIGKILL) }},
	{name: "rank stopped", forms: separate, says: `for rank %d|rank %d |MPI has not joined`, plant: func(_ *faults.Run, pid int, _ []int, _ *rand.Rand) error { return syscall.Kill(pid, syscall.SIGSTOP) }},
	{name: "rank slow", forms: separate, plant: func(_ *faults.Run, pid int, _ []int, random *rand.Rand) error {
		syscall.Kill(pid, syscall.SIGSTOP)
		time.Sleep(time.Duration(random.IntN(int(faultDeadline / 3))))
		return syscall.Kill(pid, syscall.SIGCONT)
	}},
	{name: "messages overwritten", forms: separate, says: "is damaged|rank %d has ended", plant: func(r *faults.Run, pid int, _ []int, _ *rand.Rand) error { return r.Corrupt(pid) }},
	{name: "messages cut off", forms: separate, says: `rank %d`, plant: func(r *faults.Run, pid int, _ []int, _ *rand.Rand) error { return r.CutOff(pid) }},
	{name: "disk full", forms: faults.Forms, says: "file too large", plant: func(_ *faults.Run, _ int, pids []int, _ *rand.Rand) error {
		return each(pids, func(pid int) error { return faults.LimitFiles(pid, 200_000) })
	}},
	// Without files Go's own run time, which ends with the code 2, cannot start.
	{name: "no more files", forms: faults.Forms, says: "(?i)too many open files|has ended with the code 2|netpoll", dead: true, plant: func(_ *faults.Run, _ int, pids []int, _ *rand.Rand) error { return each(pids, faults.LimitOpen) }},
	{name: "signal", forms: faults.Forms, says: `interrupted`, plant: func(r *faults.Run, _ int, _ []int, _ *rand.Rand) error {
		if r.Form == faults.MPI {
			r.Signal(syscall.SIGUSR1)
		} else {
			r.Signal(syscall.SIGTERM)
		}
		return nil
	}},
	{name: "signal to a rank", forms: separate, says: "interrupted|rank %d has been ended by the signal `terminated`|process rank %d with PID .* exited on signal 15", plant: func(_ *faults.Run, pid int, _ []int, _ *rand.Rand) error { return syscall.Kill(pid, syscall.SIGTERM) }},
	{name: "two signals", forms: faults.Forms[:3], says: `interrupted`, plant: func(r *faults.Run, _ int, _ []int, random *rand.Rand) error {
		r.Signal(syscall.SIGTERM)
		time.Sleep(time.Duration(random.IntN(int(50 * time.Millisecond))))
		r.Signal(syscall.SIGINT)
		return nil
	}},
	{name: "command killed", forms: faults.Forms, dead: true, plant: func(r *faults.Run, _ int, _ []int, _ *rand.Rand) error { r.Signal(syscall.SIGKILL); return nil }},
}

// faultRuns are the runs that are disturbed, and those that are not.
type faultRuns struct {
	ppc, dir string
	lasts    map[faults.Form][]time.Duration // by pairs of ranks less one
	log      map[int][]byte                  // lines, by the number of ranks
	params   map[int][]byte
}

// faultCount is a row of the table.
type faultCount struct {
	planted             map[faults.Form]int
	late, well, resumed int
	longest             time.Duration
}

// randomFaults disturbs n runs, each by one fault whose kind, rank and moment follow from its number, and holds of each: it ends, says
// why, leaves nothing, and goes on as if nothing had been.
func randomFaults(n int) error {
	dir, ppc, remove, err := command()
	if err != nil {
		return err
	}
	defer remove()
	f := &faultRuns{ppc: ppc, dir: dir, lasts: map[faults.Form][]time.Duration{}, log: map[int][]byte{}, params: map[int][]byte{}}
	if err := f.prepare(); err != nil {
		return err
	}
	counts := map[string]*faultCount{}
	var violations []string
	for k := range n {
		random := rand.New(rand.NewPCG(uint64(k), 2))
		kind := &faultKinds[random.IntN(len(faultKinds))]
		form := kind.forms[random.IntN(len(kind.forms))]
		ranks := 2 + 2*random.IntN(2)
		if counts[kind.name] == nil {
			counts[kind.name] = &faultCount{planted: map[faults.Form]int{}}
		}
		for _, v := range f.try(kind, form, ranks, random, counts[kind.name]) {
			violations = append(violations, fmt.Sprintf("fault %d (%s, %s, %d ranks): %s", k, kind.name, form, ranks, v))
			fmt.Fprintln(os.Stderr, violations[len(violations)-1])
		}
	}
	fmt.Printf("%-22s", "fault")
	for _, form := range faults.Forms {
		fmt.Printf(" %22s", form)
	}
	fmt.Printf(" %10s %10s %8s %10s\n", "no effect", "ended well", "resumed", "longest, s")
	for _, kind := range faultKinds {
		c := counts[kind.name]
		if c == nil {
			continue
		}
		fmt.Printf("%-22s", kind.name)
		for _, form := range faults.Forms {
			fmt.Printf(" %22d", c.planted[form])
		}
		fmt.Printf(" %10d %10d %8d %10.2f\n", c.late, c.well, c.resumed, c.longest.Seconds())
	}
	fmt.Printf("%d faults, %d violations\n", n, len(violations))
	if len(violations) > 0 {
		return fmt.Errorf("%d violations:\n%s", len(violations), strings.Join(violations, "\n"))
	}
	return nil
}

// prepare writes model and data, and makes the undisturbed runs: for as many ranks what the losses are, in each form how long it takes.
func (f *faultRuns) prepare() error {
	const rows = 80
	x, label := make([]float32, 16*rows), make([]byte, 4*rows)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range x {
		x[i] = random.Float32() - 0.5
	}
	for r := range rows {
		label[4*r] = byte(r % 4)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "faulty.pp"), []byte(faultModel), 0o600); err != nil {
		return err
	}
	if err := data.WriteNPZ(filepath.Join(f.dir, "data.npz"), []data.Array{
		data.NewFloat32("x", []int{rows, 16}, x), {Name: "label", DType: data.I32, Shape: []int{rows}, Data: label},
	}); err != nil {
		return err
	}
	for _, form := range faults.Forms {
		for _, ranks := range []int{2, 4} {
			run := filepath.Join(f.dir, "whole")
			r, err := f.start(run, form, ranks, "-checkpoint", "ck", "-save-every", "5", "-keep", "2")
			if err != nil {
				return err
			}
			if err := r.Wait(faultPatience); err != nil || r.Code != 0 {
				return fmt.Errorf("%s: %v %s", form, err, r.Stderr())
			}
			f.lasts[form] = append(f.lasts[form], r.Took)
			log, err := os.ReadFile(filepath.Join(run, "log.jsonl"))
			if err != nil {
				return err
			}
			params, err := os.ReadFile(filepath.Join(run, "end.safetensors"))
			if err != nil {
				return err
			}
			if f.log[ranks] == nil {
				f.log[ranks], f.params[ranks] = log, params
			} else if !bytes.Equal(log, f.log[ranks]) || !bytes.Equal(params, f.params[ranks]) {
				return fmt.Errorf("%s with %d ranks gives other losses or parameters than %s", form, ranks, faults.Forms[0])
			}
			r.Close()
			if err := os.RemoveAll(run); err != nil {
				return err
			}
		}
	}
	return nil
}

// start runs the model in a new folder, or one that is there.
func (f *faultRuns) start(dir string, form faults.Form, ranks int, args ...string) (*faults.Run, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	args = append(args, "-steps", fmt.Sprint(faultSteps), "-data", "../data.npz", "-deadline", faultDeadline.String(), "-log", "log.jsonl", "-save", "end.safetensors", "../faulty.pp")
	return faults.Setup{Messages: true}.Start(form, f.ppc, dir, ranks, args...)
}

// try disturbs one run and returns what is wrong with how it ends.
func (f *faultRuns) try(kind *faultKind, form faults.Form, ranks int, random *rand.Rand, count *faultCount) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	dir := filepath.Join(f.dir, "run")
	defer os.RemoveAll(dir)
	count.planted[form]++
	r, err := f.start(dir, form, ranks, "-checkpoint", "ck", "-save-every", "5", "-keep", "2")
	if err != nil {
		return []string{err.Error()}
	}
	defer r.Close()
	time.Sleep(time.Duration(0.9 * random.Float64() * float64(f.lasts[form][ranks/2-1])))
	rank := random.IntN(ranks)
	pids := r.Pids()
	for range 200 { // a rank that does not run yet cannot be hit
		if !slices.Contains(pids, 0) || !r.Running() {
			break
		}
		time.Sleep(5 * time.Millisecond)
		pids = r.Pids()
	}
	planted := time.Now()
	if slices.Contains(pids, 0) || kind.plant(r, pids[rank], pids, random) != nil {
		count.late++ // it is ending
	}
	if kind.name == "rank slow" || kind.name == "messages overwritten" {
		planted = time.Now()
	}
	if err := r.Wait(faultPatience); err != nil {
		bad("%v: %s", err, r.Stderr())
		return wrong
	}
	count.longest = max(count.longest, time.Since(planted))
	for _, left := range r.Left() {
		bad("left over: %s", left)
	}
	said := r.Stderr()
	log, _ := os.ReadFile(filepath.Join(dir, "log.jsonl"))
	if !bytes.HasPrefix(f.log[ranks], log) || len(log) > 0 && !bytes.HasSuffix(log, []byte("}\n")) {
		bad("the log is none of whole lines with the losses of the undisturbed run")
	}
	if r.Code == 0 {
		count.well++
		params, err := os.ReadFile(filepath.Join(dir, "end.safetensors"))
		if err != nil || !bytes.Equal(params, f.params[ranks]) || !bytes.Equal(log, f.log[ranks]) {
			bad("it ends well with other losses or parameters: %v", err)
		}
		return wrong
	}
	if kind.name == "rank slow" {
		bad("exit code %d: %s", r.Code, said)
	}
	dead := kind.dead || form == faults.MPI || form == faults.InProcess && kind.name == "rank killed"
	_, missing := os.Stat(filepath.Join(dir, "ck"))
	early := missing != nil && r.Code == -1 && strings.Contains(kind.name, "signal") // it did not listen yet
	if early {
		count.late++
	}
	if kind.says != "" && !early {
		if says := strings.ReplaceAll(kind.says, "%d", fmt.Sprint(rank)); !regexp.MustCompile(says).MatchString(said) {
			bad("stderr has not %q: %s", says, said)
		}
	}
	names := `log\.jsonl|log_output|ck`
	holds := func(dir, names string) {
		list, err := os.ReadDir(dir)
		for _, e := range list {
			if !regexp.MustCompile("^(" + names + ")$").MatchString(e.Name()) {
				bad("left over: %s (said: %s)", filepath.Join(filepath.Base(dir), e.Name()), said)
			}
		}
		if err != nil && !os.IsNotExist(err) {
			bad("%v", err)
		}
	}
	if !dead || kind.name != "command killed" && form == faults.MPI {
		holds(dir, names)
	}
	if !dead {
		holds(filepath.Join(dir, "ck"), `step-\d+`)
	}
	if err := f.resume(dir, ranks, count, holds); err != nil {
		bad("%v", err)
	}
	return wrong
}

// resume goes on from the last checkpoint, if there is one, else from the start, and compares with the undisturbed run.
func (f *faultRuns) resume(dir string, ranks int, count *faultCount, holds func(dir, names string)) error {
	args := []string{"-checkpoint", "ck"}
	steps, err := checkpoint.Steps(filepath.Join(dir, "ck"))
	first := 0
	if err == nil && len(steps) > 0 {
		first = steps[0]
		args = append(args, "-resume", "ck")
	}
	r, err := f.start(dir, faults.InProcess, ranks, args...)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Wait(faultPatience); err != nil || r.Code != 0 || strings.Contains(r.Stderr(), "is skipped") {
		return fmt.Errorf("the run does not go on: %v, exit code %d: %s", err, r.Code, r.Stderr())
	}
	log, errL := os.ReadFile(filepath.Join(dir, "log.jsonl"))
	params, errP := os.ReadFile(filepath.Join(dir, "end.safetensors"))
	rest := bytes.Join(bytes.SplitAfter(f.log[ranks], []byte("\n"))[first:], nil)
	if errL != nil || errP != nil || !bytes.Equal(log, rest) || !bytes.Equal(params, f.params[ranks]) {
		return fmt.Errorf("behind step %d the run goes on with other losses or parameters", first)
	}
	holds(filepath.Join(dir, "ck"), `step-\d+`)
	count.resumed++
	return nil
}
