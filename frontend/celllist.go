package frontend

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/layout"
	"github.com/ppc-lang/ppc/frontend/syntax"
)

// layoutOf is a layout for one list of cells; path is "" when the network has
// only one.
type layoutOf struct {
	path string
	text string
	at   diag.Range
}

// layouts applies the entry layout, or the option that replaces it: the cells
// of a list get the stages that the notation says. Marks on the list are
// replaced; stage_config, which comes later, replaces these.
func (b *block) layouts() {
	wanted, ok := b.wantedLayouts()
	if !ok {
		return
	}
	lists := map[string][]*instance{}
	b.member("network").cellLists("", lists)
	names := sortedKeys(lists)
	for _, w := range wanted {
		path := w.path
		switch {
		case len(names) == 0:
			b.errorf(diag.BadLayout, w.at, "the network has no list of cells to lay out")
			return
		case path == "" && len(names) > 1:
			b.fail(diag.Errorf(diag.BadLayout, w.at, "the network has %d lists of cells: %s", len(names), strings.Join(names, ", ")).
				WithRepair("layout = { %s: ... }, or -layout '%s=...'", names[0], names[0]))
			return
		case path == "":
			path = names[0]
		case lists[path] == nil:
			d := diag.Errorf(diag.UnknownCell, w.at, "the network has no list of cells %q", path)
			if d.Repair = diag.DidYouMean(path, names); d.Repair == "" {
				d.Repair = "its lists are " + strings.Join(names, ", ")
			}
			b.fail(d)
			return
		}
		l, err := b.parseLayout(w.text, len(lists[path]))
		if err != nil {
			b.layoutFault(err, w.at, path, len(lists[path]))
			return
		}
		b.markList(l, lists[path], w.at)
	}
}

// wantedLayouts reads the entry or the option.
func (b *block) wantedLayouts() ([]layoutOf, bool) {
	if text := b.opts.Layout; text != "" {
		w := layoutOf{text: text, at: b.decl.At}
		if path, rest, ok := strings.Cut(text, "="); ok {
			w.path, w.text = strings.TrimSpace(path), rest
		}
		return []layoutOf{w}, true
	}
	s := b.entries["layout"]
	if s == nil {
		return nil, false
	}
	m, ok := s.Values[0].(*syntax.Map)
	if !ok {
		text, ok := b.layoutText(s.Values[0])
		return []layoutOf{{text: text, at: s.Values[0].Range()}}, ok
	}
	var out []layoutOf
	for i, k := range m.Keys {
		paths, ok := b.keyPaths("layout", k)
		if !ok {
			return nil, false
		}
		if len(paths) != 1 {
			b.errorf(diag.BadEntry, k.Range(), "a key of `layout` is the path of one list of cells")
			return nil, false
		}
		text, ok := b.layoutText(m.Values[i])
		if !ok {
			return nil, false
		}
		out = append(out, layoutOf{paths[0], text, m.Values[i].Range()})
	}
	return out, true
}

// layoutText gives the notation of a value: a string, or the numbers of a list.
func (b *block) layoutText(x syntax.Expr) (string, bool) {
	v := b.eval(x)
	if isPoison(v) {
		return "", false
	}
	if s, ok := v.(text); ok {
		return string(s), true
	}
	items, ok := sequence(v)
	if !ok {
		b.fail(diag.Errorf(diag.BadEntry, x.Range(), "a layout is a string or a list of layers per stage, not %s", v.kind()).
			WithRepair(`[9, 10, 12, 9], "offset:-1,0,2,-1" or "Et*9|t*10|t*12|t*9L"`))
		return "", false
	}
	sizes := make([]int, len(items))
	for i, item := range items {
		if sizes[i], ok = b.wholeValue(item, x.Range(), "a number of layers"); !ok {
			return "", false
		}
	}
	return layout.Join(sizes), true
}

// parseLayout reads a notation for a list of n cells. For a program of one
// stage any stage count that the notation allows will do.
func (b *block) parseLayout(text string, n int) (*layout.Layout, error) {
	stages := []int{b.stages}
	if b.unsplit {
		stages = []int{b.spec.Stages, 0, 1}
	}
	var first error
	for _, s := range stages {
		l, err := layout.Parse(text, layout.Model{Layers: n, Stages: s})
		if err == nil {
			return l, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// layoutFault gives a fault of a notation its place.
func (b *block) layoutFault(err error, at diag.Range, path string, n int) {
	var d diag.Diagnostic
	if !errors.As(err, &d) {
		d = diag.Errorf(diag.BadLayout, at, "%v", err)
	}
	d.Range = at
	if b.opts.Layout != "" {
		d = d.WithNote(diag.Range{}, "the layout is that of -layout")
	}
	b.fail(d.WithNote(diag.Range{}, "the list `%s` has %d cells", path, n))
}

// markList marks the cells of a list, and the loss, with the stages of a layout.
func (b *block) markList(l *layout.Layout, cells []*instance, at diag.Range) {
	if s := b.entries["interleave"]; l.Chunks() > 1 && s != nil && !b.spec.Interleave && !b.unsplit {
		b.fail(diag.Errorf(diag.BadLayout, at, "the layout has %d chunks on each stage, but `interleave` is false", l.Chunks()).
			WithNote(s.At, "interleave is set here").WithRepair("leave `interleave` out"))
		return
	}
	b.spec.Interleave = b.spec.Interleave || l.Chunks() > 1
	b.layoutStages = max(b.layoutStages, l.Stages())
	loss := b.member("loss")
	for _, row := range l.Parts {
		for stage, p := range row {
			switch {
			case p.Predictions > 0:
				b.errorf(diag.BadLayout, at, "the layout has %d layers `m` on stage %d; the network is trained on one further token only", p.Predictions, stage)
				return
			case p.Losses > 1:
				b.errorf(diag.BadLayout, at, "the layout has %d losses on stage %d; a loss is one cell", p.Losses, stage)
				return
			case p.Losses == 1 && loss != nil:
				loss.placing = nowhere
				stageOf.set(&loss.placing, stage, at)
			}
			for _, c := range cells[:p.Layers] {
				c.placing = nowhere
				stageOf.set(&c.placing, stage, at)
			}
			cells = cells[p.Layers:]
		}
	}
}

// cellLists finds the lists of cells below i that are in no other list, by
// their paths. prefix is the path of i with a dot.
func (i *instance) cellLists(prefix string, found map[string][]*instance) {
	below := func(name string, x value) {
		switch x := x.(type) {
		case *instance:
			if x.parent == i {
				x.cellLists(prefix+name+".", found)
			}
		case list, *cellList:
			items, _ := sequence(x)
			cells := make([]*instance, 0, len(items))
			for n, item := range items {
				if c, ok := item.(*instance); ok && c.parent == i && c.name == strings.TrimPrefix(fmt.Sprintf("%s.%d", name, n), ".") {
					cells = append(cells, c)
				}
			}
			if len(cells) > 0 && len(cells) == len(items) {
				found[strings.TrimSuffix(prefix+name, ".")] = cells
			}
		}
	}
	if i.self != nil {
		below("", i.self)
		return
	}
	for _, m := range slices.Sorted(slices.Values(i.order)) {
		below(m, i.members[m])
	}
}
