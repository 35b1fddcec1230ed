package autodiff

import "github.com/ppc-lang/ppc/ir"

// fold adds up what the consumers of v gave, 0 if nothing: see the package comment for the order. level is the scope
// that defines v.
func (b *builder) fold(v ir.ValueID, level ir.ScopeID) ir.ValueID {
	given := b.given[v]
	if len(given) == 0 {
		return 0
	}
	b.given[v] = nil
	if len(given) > 1 {
		return b.foldAt(level, given)
	}
	return given[0].grad
}

// foldAt folds the uses of a value that scope level defines: first those outside it, as one consumer, then its own.
func (b *builder) foldAt(level ir.ScopeID, given []contribution) ir.ValueID {
	var inside, outside []contribution
	for _, c := range given {
		if b.within(c.scope, level) {
			inside = append(inside, c)
		} else {
			outside = append(outside, c)
		}
	}
	var terms []ir.ValueID
	switch {
	case len(outside) == 0:
	case level == 0:
		for _, c := range outside {
			terms = append(terms, c.grad)
		}
	default:
		terms = append(terms, b.foldAt(b.f.Scopes()[level].Parent, outside))
	}
	return b.sum(level, append(terms, b.terms(level, inside)...))
}

// terms folds each run of uses in one scope below level to one term.
func (b *builder) terms(level ir.ScopeID, given []contribution) []ir.ValueID {
	var terms []ir.ValueID
	for i := 0; i < len(given); {
		if given[i].scope == level {
			terms = append(terms, given[i].grad)
			i++
			continue
		}
		child := b.childOf(level, given[i].scope)
		j := i
		for j < len(given) && given[j].scope != level && b.childOf(level, given[j].scope) == child {
			j++
		}
		terms = append(terms, b.sum(child, b.terms(child, given[i:j])))
		i = j
	}
	return terms
}

// sum is the left fold of terms.
func (b *builder) sum(scope ir.ScopeID, terms []ir.ValueID) ir.ValueID {
	at := ir.Unmarked(ir.Pos{})
	at.Pass, at.Scope = ir.InputPass, scope
	total := terms[0]
	for _, t := range terms[1:] {
		total = b.input.MustEmit(ir.Add, []ir.ValueID{total, t}, nil, at)
	}
	return total
}

func (b *builder) within(scope, level ir.ScopeID) bool {
	if scope < 0 {
		return false
	}
	for scope > level {
		scope = b.f.Scopes()[scope].Parent
	}
	return scope == level
}

// childOf is the ancestor of scope (or itself) right below level.
func (b *builder) childOf(level, scope ir.ScopeID) ir.ScopeID {
	for b.f.Scopes()[scope].Parent != level {
		scope = b.f.Scopes()[scope].Parent
	}
	return scope
}
