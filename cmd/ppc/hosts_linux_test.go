package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/internal/faults"
)

// twoHosts is what has mpirun between two hosts. The test is skipped, but not by continuous integration, where they cannot be made.
func twoHosts(t *testing.T) faults.Setup {
	t.Helper()
	script, err := filepath.Abs("../../bench/hosts.sh")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(script, "2", "true").CombinedOutput(); err != nil && os.Getenv("CI") == "" {
		t.Skipf("%s", out)
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return faults.Setup{Hosts: script}
}

func TestHosts(t *testing.T) {
	setup := twoHosts(t)
	t.Run("bits", func(t *testing.T) { sameBetweenHosts(t, setup) })
	t.Run("cut", func(t *testing.T) { cutBetweenHosts(t, setup) })
	t.Run("none", func(t *testing.T) {
		out, err := exec.Command("setpriv", "--bounding-set=-sys_admin", setup.Hosts, "2", "true").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "hosts.sh: namespaces of networks and processes cannot be made here: that takes root") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// Ranks on two hosts give the bits of ranks in one process, and send what they send each other over the cable between them.
func sameBetweenHosts(t *testing.T, setup faults.Setup) {
	text, err := os.ReadFile("testdata/models/small.pp")
	if err != nil {
		t.Fatal(err)
	}
	folderWith(t, "small.pp", string(text))
	const width, steps = 512, 4
	line := func(out string) []string {
		return []string{"-set", fmt.Sprintf("width=%d", width), "-log", out + ".jsonl", "-log-norms", "-save", out + ".npz", "small.pp"}
	}
	if code, _, stderr := inProcess(append([]string{"run", "-devices", "4"}, line("run")...)...); code != 0 {
		t.Fatal(stderr)
	}
	r, err := setup.Start(faults.MPI, "ppc", ".", 4, line("hosts")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if ends(t, r, 0); r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Stderr())
	}
	for _, file := range []string{".jsonl", ".npz"} {
		a, errA := os.ReadFile("run" + file)
		b, errB := os.ReadFile("hosts" + file)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("other bytes in hosts%s than with ppc run: %v %v", file, errA, errB)
		}
	}
	sent := regexp.MustCompile(`host \d has sent (\d+) bytes`).FindAllStringSubmatch(r.Stderr(), -1)
	if len(sent) != 2 {
		t.Fatal(r.Stderr())
	}
	// In a step 8 rows of activations go to the second host, and as many gradients come back.
	for host, s := range sent {
		if n, _ := strconv.Atoi(s[1]); n < steps*8*width*4 {
			t.Errorf("host %d has sent %d bytes", host+1, n)
		}
	}
}

// The cable is cut: all ranks on both hosts end by themselves and say for whom they have waited, and the run can go on. What mpirun
// and its helper on the other host do is theirs: they may wait for each other without end.
func cutBetweenHosts(t *testing.T, setup faults.Setup) {
	folderWith(t, "endless.pp", endless)
	r := startSetup(t, setup, faults.MPI, 4, "-checkpoint", "ck", "-save-every", "2", "-keep", "2", "-deadline", "2s")
	pids := r.Pids()
	if slices.Contains(pids, 0) {
		t.Fatal(pids)
	}
	if err := faults.CutCable(pids[3]); err != nil {
		t.Fatal(err)
	}
	none := make([]int, len(pids))
	for until := time.Now().Add(time.Minute); !slices.Equal(r.Pids(), none); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("ranks %v do not end: %s", r.Pids(), r.Stderr())
		}
	}
	r.Kill()
	if err := r.Wait(time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, left := range r.Left() {
		t.Errorf("left over: %s", left)
	}
	waits := func(ranks, others string) string {
		return fmt.Sprintf(`nothing has come for 2s: rank [%s] waits in .+ for rank [%s]`, ranks, others)
	}
	if here := waits("01", "23"); !regexp.MustCompile(here).MatchString(r.Stderr()) {
		t.Errorf("stderr has not %q: %s", here, r.Stderr())
	}
	var logs strings.Builder
	for rank := range pids {
		text, err := os.ReadFile(fmt.Sprintf("log_output/worker_%d.log", rank))
		if err != nil {
			t.Fatal(err)
		}
		logs.Write(text)
	}
	for _, said := range []string{waits("01", "23"), waits("23", "01")} {
		if !regexp.MustCompile(said).MatchString(logs.String()) {
			t.Errorf("logs have not %q: %s", said, logs.String())
		}
	}
	goesOn(t, "ck", 4)
}
