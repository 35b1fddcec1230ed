package runtime

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/runtime/transport"
)

// report is what a rank tells about a step, by Stage.Params.
type report struct {
	squares []float64 // of the gradients; nil if not asked
	digests []uint64  // of the values; nil if not asked
}

// tell reports step n, which had that loss scale: the first rank of the stage with the loss hears from those of the others. The ranks
// that share parameters out with them take part, since digests are those of whole values.
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
	if k.replica > 0 {
		return nil
	}
	if k.stage != lossStage {
		if reporting {
			return k.during("reporting a step", k.reports[k.stage].send(mine))
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
	var own report
	if r.opt.Norms {
		own.squares = append(own.squares, k.squares...)
	}
	if !r.opt.Digests {
		return own, nil
	}
	for i, sp := range r.plan.Stages[k.stage].Params {
		v := k.dense(sp.Param.Type.Elems())
		if err := k.value(i, v); err != nil {
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

// reportLink carries reports of one rank: squares, then digests, where they are asked for.
type reportLink struct {
	transport.End
	buffers [][]byte
	sent    uint64 // reports so far
}

// reportBytes is the size of a report about so many parameters.
func reportBytes(params int, o Options) (n int) {
	if o.Norms {
		n += 8 * params
	}
	if o.Digests {
		n += 8 * params
	}
	return n
}

// send hands a rank's report to the rank that has the loss, once that has taken the one before. A stage without parameters has
// no link and nothing to report.
func (l *reportLink) send(own report) error {
	if l == nil {
		return nil
	}
	if err := l.finish(); err != nil {
		return err
	}
	b := l.buffers[0][:0]
	for _, x := range own.squares {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	for _, x := range own.digests {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	l.Post(l.buffers)
	l.sent++
	return nil
}

// finish waits until the last report is on its way.
func (l *reportLink) finish() error {
	if l == nil || l.sent == 0 {
		return nil
	}
	return l.Wait(l.sent - 1)
}

// take waits for the next report.
func (l *reportLink) take(o Options) (r report, err error) {
	l.Post(l.buffers)
	if err := l.Wait(l.sent); err != nil {
		return r, err
	}
	l.sent++
	b := l.buffers[0]
	n := len(b) / 8
	if o.Norms && o.Digests {
		n /= 2
	}
	next := func() uint64 {
		x := binary.LittleEndian.Uint64(b)
		b = b[8:]
		return x
	}
	if o.Norms {
		for range n {
			r.squares = append(r.squares, math.Float64frombits(next()))
		}
	}
	if o.Digests {
		for range n {
			r.digests = append(r.digests, next())
		}
	}
	return r, nil
}

// gather collects the reports of all stages. The global norm adds the sums of squares in declaration order.
func (r *runner) gather(k *rank, own report, s *Step) error {
	all := make([]report, len(r.plan.Stages))
	for t := range all {
		all[t] = own
		if l := k.reports[t]; l != nil {
			var err error
			if all[t], err = l.take(r.opt); err != nil {
				return k.during("the report of a step", err)
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
