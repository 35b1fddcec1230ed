package frontend

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
)

// placing is where marks put a cell or parameter; -1 where they do not say. A segment is the number of its chunk among
// those of a stage, in the order in which data pass them.
type placing struct {
	stage, segment     int
	stageAt, segmentAt diag.Range
}

var nowhere = placing{stage: -1, segment: -1}

// axis is one of the two numbers of a placing.
type axis struct {
	name  string
	fault diag.Code
	set   func(*placing, int, diag.Range)
}

var (
	stageOf   = axis{"stage", diag.BadStage, func(p *placing, n int, at diag.Range) { p.stage, p.stageAt = n, at }}
	segmentOf = axis{"segment", diag.BadSegment, func(p *placing, n int, at diag.Range) { p.segment, p.segmentAt = n, at }}
)

// once reports marks that stand twice behind one thing.
func (v *env) once(marks []syntax.Mark) {
	for i, m := range marks {
		if slices.ContainsFunc(marks[:i], func(first syntax.Mark) bool { return first.Name == m.Name }) {
			v.errorf(diag.MisplacedMark, m.At, "@%s is given twice", m.Name)
		}
	}
}

// placeMark reads @stage(n) or @segment(n), the marks that expressions and parameters take.
func (v *env) placeMark(m syntax.Mark, p *placing) bool {
	var a axis
	switch m.Name {
	case "stage":
		a = stageOf
	case "segment":
		a = segmentOf
	case "recompute":
		v.errorf(diag.NotSupported, m.At, "@%s is not built yet", m.Name)
		return false
	case "lazy_inline":
		v.errorf(diag.MisplacedMark, m.At, "@lazy_inline stands before the declaration of a cell")
		return false
	case "whole":
		v.errorf(diag.MisplacedMark, m.At, "@whole stands after an input")
		return false
	default:
		d := diag.Errorf(diag.MisplacedMark, m.At, "unknown mark @%s", m.Name)
		if d.Repair = diag.DidYouMean(m.Name, []string{"stage", "segment", "lazy_inline", "whole"}); d.Repair == "" {
			d.Repair = "a matrix product is written matmul(x, w)"
		}
		v.fail(d)
		return false
	}
	if len(m.Args) != 1 {
		v.errorf(a.fault, m.At, "@%s takes one number", a.name)
		return false
	}
	n, ok := v.placeNumber(v.eval(m.Args[0].Value), a, m.At)
	if ok {
		a.set(p, n, m.At)
	}
	return ok
}

// placeNumber floors a number to a stage or segment.
func (v *env) placeNumber(x value, a axis, at diag.Range) (int, bool) {
	n, ok := x.(number)
	if !ok {
		if !isPoison(x) {
			v.errorf(a.fault, at, "a %s is a number, not %s", a.name, x.kind())
		}
		return 0, false
	}
	f := math.Floor(n.float())
	if !(f >= 0 && f < maxStages) {
		v.errorf(a.fault, at, "%s %s is outside 0..%d", a.name, n, maxStages)
		return 0, false
	}
	return int(f), true
}

// config applies the entry stage_config or segment_config. Later keys win, and it beats
// marks. A key is a path, a path with a range (block[0..12]), or a string with
// the wildcards of path.Match ("*.attn").
func (b *block) config(entry string, cells map[string]*instance, a axis) {
	s := b.entries[entry]
	if s == nil {
		return
	}
	m, ok := s.Values[0].(*syntax.Map)
	if !ok {
		b.fail(diag.Errorf(diag.BadEntry, s.Values[0].Range(), "`%s` is a map from cells to %ss", entry, a.name).WithRepair("{ layer1: 0, layer2: 1 }"))
		return
	}
	paths := sortedKeys(cells)
	for i, k := range m.Keys {
		at := m.Values[i].Range()
		n, ok := b.whole(m.Values[i], "a "+a.name)
		if ok && (n < 0 || n >= maxStages) {
			b.errorf(a.fault, at, "%s %d is outside 0..%d", a.name, n, maxStages)
			ok = false
		}
		for _, found := range b.matchKey(entry, k, paths) {
			if ok {
				a.set(&cells[found].placing, n, at)
			}
		}
	}
}

// matchKey gives the paths that a key means; none, after a report, when it
// matches nothing.
func (b *block) matchKey(entry string, k syntax.Expr, paths []string) []string {
	unknown := func(key string) []string {
		d := diag.Errorf(diag.UnknownCell, k.Range(), "no cell %q in the network", key)
		d.Repair = diag.DidYouMean(key, paths)
		if slices.Contains(paths, key+".0") {
			n := 1
			for slices.Contains(paths, fmt.Sprintf("%s.%d", key, n)) {
				n++
			}
			d.Repair = fmt.Sprintf("it is a list of cells; %s[0..%d] means all of them", key, n)
		}
		shown := paths
		if len(shown) > 40 {
			shown = append(slices.Clone(shown[:40]), fmt.Sprintf("and %d more", len(paths)-40))
		}
		b.fail(d.WithNote(diag.Range{}, "the cells are %s", strings.Join(shown, ", ")))
		return nil
	}
	if s, ok := k.(*syntax.String); ok {
		var found []string
		for _, p := range paths {
			match, err := path.Match(s.Value, p)
			if err != nil {
				b.errorf(diag.BadEntry, k.Range(), "%q is not a pattern", s.Value)
				return nil
			}
			if match {
				found = append(found, p)
			}
		}
		if len(found) == 0 {
			return unknown(s.Value)
		}
		return found
	}
	wanted, ok := b.keyPaths(entry, k)
	if !ok {
		return nil
	}
	if len(wanted) == 0 {
		b.errorf(diag.UnknownCell, k.Range(), "the range of this key is empty: it matches no cell")
		return nil
	}
	for _, p := range wanted {
		if !slices.Contains(paths, p) {
			return unknown(p)
		}
	}
	return wanted
}

// keyPaths spells out the paths of a key of an entry: a name, then names, numbers and
// ranges.
func (b *block) keyPaths(entry string, k syntax.Expr) ([]string, bool) {
	extend := func(x syntax.Expr, suffixes ...string) ([]string, bool) {
		heads, ok := b.keyPaths(entry, x)
		if len(heads)*len(suffixes) > maxInstances {
			b.errorf(diag.TooManyCells, k.Range(), "the key means more than %d cells", maxInstances)
			ok = false
		}
		if !ok {
			return nil, false
		}
		var out []string
		for _, h := range heads {
			for _, s := range suffixes {
				out = append(out, h+"."+s)
			}
		}
		return out, true
	}
	switch k := k.(type) {
	case *syntax.Name:
		return []string{k.Text}, true
	case *syntax.Select:
		return extend(k.X, k.Name.Text)
	case *syntax.Index:
		if len(k.Items) != 1 {
			break
		}
		x := b.eval(k.Items[0])
		if isPoison(x) {
			return nil, false
		}
		items, ok := sequence(x)
		if !ok {
			items = []value{x}
		}
		var suffixes []string
		for _, item := range items {
			n, ok := b.wholeValue(item, k.Items[0].Range(), "an index")
			if !ok {
				return nil, false
			}
			suffixes = append(suffixes, fmt.Sprint(n))
		}
		return extend(k.X, suffixes...)
	}
	b.fail(diag.Errorf(diag.BadEntry, k.Range(), "a key of `%s` is the path of a cell", entry).
		WithRepair(`layer1, block.3, block[0..12] or "*.attn"`))
	return nil, false
}

// stageCount settles how many stages the block has: one more than the highest
// mark when no mark depends on the name stages, else what was asked for.
func (b *block) stageCount() {
	highest, at := -1, diag.Range{}
	segmented := diag.Range{} // a cell with a segment
	note := func(p *placing) {
		if p.stage > highest {
			highest, at = p.stage, p.stageAt
		}
		if p.segment >= 0 {
			segmented = p.segmentAt
		}
	}
	for _, name := range b.root.order {
		if inst := b.member(name); inst != nil && name != "optimizer" {
			inst.walk(func(i *instance) { note(&i.placing) }, func(p *storage) { note(&p.placing) })
		}
	}
	for _, in := range b.inputs {
		note(&in.placing)
	}
	spec := b.spec
	if b.unsplit {
		spec.Stages, spec.StagesPos = 1, b.decl.At.Pos
		return
	}
	if b.opts.Stages > 0 {
		spec.Stages, spec.StagesPos = b.opts.Stages, b.decl.At.Pos
	}
	if highest < 0 {
		if segmented.Pos.IsValid() {
			b.fail(diag.Errorf(diag.BadSegment, segmented, "there are segments, but no cell has a stage").
				WithRepair("@stage(...) or `stage_config` gives stages; a segment is a row of chunks, one on each stage"))
		}
		return
	}
	spec.Marked = true
	switch {
	case b.layoutStages > highest+1:
		b.fail(diag.Errorf(diag.EmptyStage, at, "the layout has %d stages, but stage %d has no cell", b.layoutStages, b.layoutStages-1).
			WithRepair("place a cell there with `stage_config`, or leave the stage out"))
	case b.stagesRead && highest >= b.stages:
		b.errorf(diag.BadStage, at, "stage %d does not exist: there are %d stages", highest, b.stages)
	case b.stagesRead:
	case spec.Stages > 0 && spec.Stages != highest+1:
		what := fmt.Sprintf("`stages = %d`", spec.Stages)
		if b.opts.Stages > 0 {
			what = fmt.Sprintf("-stages %d", spec.Stages)
		}
		b.fail(diag.Errorf(diag.StagesDiffer, at, "the marks give %d stages, which differs from %s", highest+1, what).
			WithRepair("leave it out, or mark stages with @stage(i * stages / n)"))
	default:
		spec.Stages, spec.StagesPos = highest+1, at.Pos
	}
}
