package ascend

import (
	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/plan"
)

func (s *stageEmitter) files() []plan.File { return nil }

func buildFiles(p *plan.Plan, c chip.Chip, stages []emulator.StageProgram) []plan.File { return nil }
