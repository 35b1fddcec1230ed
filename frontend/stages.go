package frontend

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
)

// stageConfig applies the entry stage_config. Later keys win, and it beats
// marks. A key is a path, a path with a range (block[0..12]), or a string with
// the wildcards of path.Match ("*.attn").
func (b *block) stageConfig(x syntax.Expr, cells map[string]*instance) {
	m, ok := x.(*syntax.Map)
	if !ok {
		b.fail(diag.Errorf(diag.BadEntry, x.Range(), "`stage_config` is a map from cells to stages").WithRepair("{ layer1: 0, layer2: 1 }"))
		return
	}
	paths := sortedKeys(cells)
	for i, k := range m.Keys {
		at := m.Values[i].Range()
		stage, ok := b.whole(m.Values[i], "a stage")
		if ok && (stage < 0 || stage >= maxStages) {
			b.errorf(diag.BadStage, at, "stage %d is outside 0..%d", stage, maxStages)
			ok = false
		}
		for _, found := range b.matchKey(k, paths) {
			if ok {
				cells[found].stage, cells[found].stageAt = stage, at
			}
		}
	}
}

// matchKey gives the paths that a key means; none, after a report, when it
// matches nothing.
func (b *block) matchKey(k syntax.Expr, paths []string) []string {
	unknown := func(key string) []string {
		d := diag.Errorf(diag.UnknownCell, k.Range(), "no cell %q in the network", key)
		d.Repair = diag.DidYouMean(key, paths)
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
	wanted, ok := b.keyPaths(k)
	if !ok {
		return nil
	}
	for _, p := range wanted {
		if !slices.Contains(paths, p) {
			return unknown(p)
		}
	}
	return wanted
}

// keyPaths spells out the paths of a key: a name, then names, numbers and
// ranges.
func (b *block) keyPaths(k syntax.Expr) ([]string, bool) {
	extend := func(x syntax.Expr, suffixes ...string) ([]string, bool) {
		heads, ok := b.keyPaths(x)
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
	b.fail(diag.Errorf(diag.BadEntry, k.Range(), "a key of `stage_config` is the path of a cell").
		WithRepair(`layer1, block.3, block[0..12] or "*.attn"`))
	return nil, false
}

// stageCount settles how many stages the block has: one more than the highest
// mark when no mark depends on the name stages, else what was asked for.
func (b *block) stageCount() {
	highest, at := -1, diag.Range{}
	note := func(stage int, where diag.Range) {
		if stage > highest {
			highest, at = stage, where
		}
	}
	for _, name := range b.root.order {
		if inst := b.member(name); inst != nil && name != "optimizer" {
			inst.walk(func(i *instance) { note(i.stage, i.stageAt) }, func(p *storage) { note(p.stage, diag.At(p.param.Pos)) })
		}
	}
	for _, in := range b.inputs {
		note(in.stage, in.decl.At)
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
