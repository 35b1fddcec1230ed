package cpu

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// step runs one operation on the current micro-batch.
type step func(m *memory) error

// load prepares every pass of every program; fusing changes speed only.
func (m *machine) load(fusing bool) error {
	f := m.newFlattener()
	accumulators, err := m.loadParams(f)
	if err != nil {
		return err
	}
	if err := m.loadShared(f); err != nil {
		return err
	}
	for i, q := range m.plan.Programs {
		pr := program{chunks: make([]*code, len(q.Chunks))}
		for c, chunk := range q.Chunks {
			if chunk.Stage < 0 || chunk.Stage >= len(m.plan.Stages) || m.plan.Stages[chunk.Stage] != m.stage {
				continue
			}
			if pr.chunks[c], err = m.loadChunk(f, chunk, fusing, m.trace != nil && i == 0); err != nil {
				return fmt.Errorf("chunk %d of program %s: %w", c, q.Name, err)
			}
			pr.chunks[c].ends = m.ends(i, c)
		}
		if q.Train {
			if err := m.assign(i, &pr, accumulators); err != nil {
				return fmt.Errorf("program %s: %w", q.Name, err)
			}
		}
		m.programs = append(m.programs, pr)
	}
	return m.loadOptimizer(fusing)
}

// loadChunk prepares the passes of a chunk.
func (m *machine) loadChunk(f *flattener, chunk *plan.Chunk, fusing, traced bool) (*code, error) {
	c := &code{}
	for pass := range chunk.Phases {
		ph := &chunk.Phases[pass]
		if ph.Func == nil {
			continue
		}
		c.passes[pass] = true
		nodes, err := f.phase(ph, ir.Pass(pass))
		if err != nil {
			return nil, err
		}
		if ir.Pass(pass) == ir.WeightPass {
			if c.sums, err = m.accumulations(nodes); err != nil {
				return nil, err
			}
			continue
		}
		if c.steps[pass], err = m.instructions(nodes, fusing); err != nil {
			return nil, err
		}
		if traced {
			m.traceSteps(c.steps[pass], nodes)
		}
	}
	return c, nil
}

// instructions makes the steps of nodes.
func (m *machine) instructions(nodes []node, fusing bool) ([]instruction, error) {
	if fusing {
		nodes = fuse(nodes, m.scratch())
	}
	out := make([]instruction, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		build := builders[n.op.Kind]
		if build == nil {
			return nil, fmt.Errorf("cpu device: there is no kernel for `%s` in this pass", n.op.Kind)
		}
		gathers, err := m.gathers(n)
		if err != nil {
			return nil, err
		}
		run, err := build(m, n)
		if err != nil {
			return nil, err
		}
		out[i] = instruction{run, n.op, gathers}
	}
	return out, nil
}

// ends lists, by pass, the items of a chunk that die with the pass.
func (m *machine) ends(program, chunk int) (out [3][]place) {
	q := m.plan.Programs[program]
	sent := q.Sent(q.Chunks[chunk].Stage)
	for i, a := range m.stage.Areas {
		if a.Program != program || a.Chunk != chunk {
			continue
		}
		var pass ir.Pass
		switch a.Lifetime {
		case plan.RecvToF:
			pass = ir.ForwardPass
		case plan.SavedForI, plan.RecvToI:
			pass = ir.InputPass
		case plan.SavedForW, plan.GradForW:
			pass = ir.WeightPass
		default:
			continue
		}
		for k, it := range a.Items {
			if !sent[plan.Ref{Area: i, Item: k}] {
				out[pass] = append(out[pass], place{i, m.layout.Offsets[i][k], plan.CPU.ItemBytes(it)})
			}
		}
	}
	return out
}

// work is the private workspace as the place of an operation that needs so many bytes.
func (m *machine) work(offset, bytes int, kind ir.Kind) (place, error) {
	p := place{m.workspace(), offset, bytes}
	return p, within(p, m.layout.Private, fmt.Sprintf("the workspace of `%s`", kind))
}
