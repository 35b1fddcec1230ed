package cpu

import (
	"errors"
	"fmt"

	"github.com/ppc-lang/ppc/plan"
)

// gathering is a value that a step reads and of which the rank has a part: the parameter, and the element of the workspace at
// which the whole begins.
type gathering struct{ param, at int }

// gatheredPlace stands for the whole value of a parameter until it is known which step reads it: each has an area of its own.
func gatheredPlace(param, bytes int) place { return place{-1 - param, 0, bytes} }

// loadShared finds the workspace of ranks that share gradients or values out.
func (m *machine) loadShared(f *flattener) error {
	if m.stage.Workspace.Item < 0 {
		return nil
	}
	if m.scatter == nil || m.gather == nil {
		return errors.New("cpu device: the plan shares gradients or values out, and the ranks of the stage cannot meet")
	}
	o, err := f.ref(m.stage.Workspace)
	if err != nil {
		return err
	}
	m.whole = m.at(o.place, 0)
	for i := range m.params {
		if n := m.params[i].elems; m.stage.Params[i].Shard >= plan.ShardGradients && n > len(m.whole) {
			return fmt.Errorf("cpu device: %s has %d elements, the workspace %d", m.params[i].name, n, len(m.whole))
		}
	}
	return nil
}

// gathers gives the values that a node reads, and of which the rank has a part, places in the workspace, one behind the other.
func (m *machine) gathers(n *node) (list []gathering, err error) {
	used := 0
	take := func(o *operand) {
		if o == nil || o.area >= 0 || err != nil {
			return
		}
		param, at := -1-o.area, -1
		for _, g := range list {
			if g.param == param {
				at = g.at
			}
		}
		if at < 0 {
			at = used
			list = append(list, gathering{param, at})
			used += plan.WorkspaceSpan(m.params[param].elems)
		}
		w := m.stage.Workspace
		o.place = place{w.Area, m.layout.Offsets[w.Area][w.Item] + 4*at, o.bytes}
		if at+m.params[param].elems > len(m.whole) {
			err = fmt.Errorf("cpu device: what `%s` reads does not fit the workspace", n.op.Kind)
		}
	}
	for k := range n.in {
		take(&n.in[k])
	}
	take(n.bias)
	take(n.mask)
	take(n.rate)
	return list, err
}

// gatherValue puts a value where a step reads it.
func (m *machine) gatherValue(g gathering) error {
	p := &m.params[g.param]
	_, err := m.gathered(p, p.value, g.at)
	return err
}

// gathered puts a whole together in the workspace from the parts of the ranks, of which this is the own.
func (m *machine) gathered(p *parameter, part []float32, at int) ([]float32, error) {
	whole := m.whole[at : at+p.elems]
	copy(whole[p.lo:p.hi], part)
	return whole, m.gather(whole)
}
