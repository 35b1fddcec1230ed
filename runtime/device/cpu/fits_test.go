package cpu

import (
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/plan"
)

// All ranks count, not the stages.
func TestFits(t *testing.T) {
	p := &plan.Plan{Degree: 3, Stages: make([]*plan.Stage, 2), Memory: []*plan.Memory{{Stages: []plan.StageMemory{{Peak: 1 << 30}, {Peak: 2 << 30}}}}}
	if err := fits(p, 9<<30); err != nil {
		t.Error(err)
	}
	err := fits(p, 9<<30-1)
	if err == nil || !strings.Contains(err.Error(), "all ranks (6) need 9.0 GiB") {
		t.Error(err)
	}
	if free, ok := available(); ok && (free < 1<<20 || free > 1<<50) {
		t.Errorf("%d bytes are free", free)
	}
}
