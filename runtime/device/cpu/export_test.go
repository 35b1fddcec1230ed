package cpu

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// OpenPlain is Open without fusion.
func OpenPlain(p *plan.Plan, stage int, opt device.Options) (device.Device, error) {
	path, err := kernel.Select(opt.Path)
	if err != nil {
		return nil, err
	}
	m, err := newMachine(p, stage, path, opt)
	if err != nil {
		return nil, err
	}
	return m, m.load(false)
}

// Steps counts the steps of a pass.
func Steps(d device.Device, chunk int, pass ir.Pass) int {
	return len(d.(*machine).programs[0].chunks[chunk].steps[pass])
}

// UpdateSteps counts the steps of the optimizer on a block.
func UpdateSteps(d device.Device) int { return len(d.(*machine).update.sizes[0].code) }

// Builds reports whether the device has a kernel for an operation.
func Builds(k ir.Kind) bool { return builders[k] != nil || k.Info().View || k.Info().InPlace }
