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

// reportOf describes the step that a rank has done.
func (r *runner) reportOf(k *rank, squares []float64) (report, error) {
	own := report{squares: append([]float64(nil), squares...)}
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
	k.waitsFor.Store(int64(to) + 1)
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
			k.waitsFor.Store(int64(t) + 1)
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
	s.Norms = make([]float64, len(r.plan.Module.Params))
	for t, st := range r.plan.Stages {
		for i, sp := range st.Params {
			if len(sp.Accumulators) > 0 && sp.Owner == t {
				s.Norms[sp.Param.Index()] = all[t].squares[i]
			}
		}
	}
	total := 0.0
	for i, x := range s.Norms {
		total += x
		s.Norms[i] = math.Sqrt(x)
	}
	s.Norm = math.Sqrt(total)
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
