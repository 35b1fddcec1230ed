package runtime

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
)

// report is what a rank tells about a step, by Stage.Params.
type report struct {
	squares []float64 // of the gradients; nil if not asked
	digests []uint64  // of the values; nil if not asked
}

// tell reports step n, which had that loss scale: the first rank of the stage with the loss hears from those of the others.
func (r *runner) tell(k *rank, n int, scale float64, losses [][]float64) error {
	reporting := r.opt.Norms || r.opt.Digests
	lossStage := r.plan.Programs[0].Outputs[0].Stage
	var mine report
	if reporting {
		var err error
		if mine, err = r.reportOf(k); err != nil {
			return err
		}
	}
	if k.stage != lossStage {
		if reporting {
			return r.send(k, lossStage, mine)
		}
		return nil
	}
	s := Step{Epoch: n / r.perEpoch, Step: n % r.perEpoch, Total: n, Loss: r.reduce(k.programs[0], 0, losses), Skipped: k.overflow, LossScale: scale}
	if reporting {
		if err := r.gather(k, mine, &s); err != nil {
			return err
		}
	}
	r.result.LastLoss, r.result.Steps = s.Loss, n+1-r.first
	if r.opt.OnStep != nil {
		r.opt.OnStep(s)
	}
	return nil
}

// reportOf describes the step that a rank has done.
func (r *runner) reportOf(k *rank) (report, error) {
	own := report{squares: append([]float64(nil), k.squares...)}
	if !r.opt.Digests {
		return own, nil
	}
	for i, sp := range r.plan.Stages[k.stage].Params {
		v := make([]float32, sp.Param.Type.Elems())
		if err := k.dev.Param(i, v); err != nil {
			return own, err
		}
		own.digests = append(own.digests, digest(v))
	}
	return own, nil
}

// digest is the same for the same bits on every machine.
func digest(v []float32) uint64 {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

// send hands a rank's report to the rank that has the loss. Both ends count as waiting: see watch.
func (r *runner) send(k *rank, to int, own report) error {
	k.waitsFor.Store(int64(to*r.plan.Degree) + 1)
	defer k.waitsFor.Store(0)
	select {
	case r.reports[k.stage] <- own:
		return nil
	case <-r.stop:
		return errStopped
	}
}

// gather collects the reports of all stages. The global norm adds the sums of squares in declaration order.
func (r *runner) gather(k *rank, own report, s *Step) error {
	defer k.waitsFor.Store(0)
	all := make([]report, len(r.plan.Stages))
	for t := range all {
		all[t] = own
		if t != k.stage {
			k.waitsFor.Store(int64(t*r.plan.Degree) + 1)
			select {
			case all[t] = <-r.reports[t]:
			case <-r.stop:
				return errStopped
			}
		}
	}
	if r.opt.Norms {
		r.norms(all, s)
	}
	if r.opt.Digests {
		return r.digests(all, s)
	}
	return nil
}

func (r *runner) norms(all []report, s *Step) {
	parts := make([][]float64, len(all))
	for t := range all {
		parts[t] = all[t].squares
	}
	each, total := squaresOf(r.plan, parts)
	for i, x := range each {
		each[i] = math.Sqrt(x) / s.LossScale
	}
	s.Norms, s.Norm = each, math.Sqrt(total)/s.LossScale
}

// digests takes those of the owners and compares the copies with them.
func (r *runner) digests(all []report, s *Step) error {
	s.Digests = make([]uint64, len(r.plan.Module.Params))
	for t, st := range r.plan.Stages {
		for i, sp := range st.Params {
			if sp.Owner == t {
				s.Digests[sp.Param.Index()] = all[t].digests[i]
			}
		}
	}
	for t, st := range r.plan.Stages {
		for i, sp := range st.Params {
			if all[t].digests[i] != s.Digests[sp.Param.Index()] {
				return fmt.Errorf("after step %d the copy of parameter `%s` on stage %d differs from that of its owner, stage %d", s.Total, sp.Param.Name, t, sp.Owner)
			}
		}
	}
	return nil
}
