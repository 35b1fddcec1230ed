package cpu

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
)

// Fits reports a plan whose ranks need more memory together than this machine has free, where the system says how much that
// is: asking for it all the same would end the process without a word.
func Fits(p *plan.Plan) error {
	free, ok := available()
	if !ok || len(p.Memory) == 0 {
		return nil
	}
	return fits(p, free)
}

func fits(p *plan.Plan, free int) error {
	need := 0
	for _, s := range p.Memory[0].Stages {
		need += s.Peak * p.Degree
	}
	if need <= free {
		return nil
	}
	const gib = 1 << 30
	return diag.List{diag.Errorf(diag.OutOfMemory, diag.Range{}, "all ranks (%d) need %.1f GiB at their peak; this machine has %.1f GiB free",
		len(p.Stages)*p.Degree, float64(need)/gib, float64(free)/gib).WithRepair("use smaller or more micro-batches, or a smaller model")}
}

// available is the memory that processes may still use, in bytes.
func available() (bytes int, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib string
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %s kB", &kib); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(kib))
			return n << 10, err == nil
		}
	}
	return 0, false
}
