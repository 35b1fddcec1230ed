package frontend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
)

// likeness is what the construct of a cell depends on besides its arguments: cells with equal text have equal constructs,
// up to the parameters they read, which stand at the same places of the two lists.
type likeness struct {
	text       string
	storages   []*storage
	instances  []*instance
	place      map[value]int // in the lists
	incomplete bool          // a cell of another part of the tree is a member: the paths inside do not tell where it is
}

// like gives the likeness of the cell; it is final once marks are placed.
func (i *instance) like() *likeness {
	if i.likeness == nil {
		l := &likeness{place: map[value]int{}}
		var b strings.Builder
		l.instance(&b, i)
		l.text = b.String()
		i.likeness = l
	}
	return i.likeness
}

func (l *likeness) instance(b *strings.Builder, i *instance) {
	l.place[i] = len(l.instances)
	l.instances = append(l.instances, i)
	fmt.Fprintf(b, "%p", i.class)
	for _, p := range i.class.decl.Params {
		b.WriteByte(' ')
		l.value(b, i, i.args[p.Name.Text])
	}
	b.WriteByte('{')
	for _, m := range i.order {
		b.WriteString(m)
		b.WriteByte('=')
		l.value(b, i, i.members[m])
	}
	if i.self != nil {
		l.value(b, i, i.self)
	}
	b.WriteByte('}')
}

func (l *likeness) value(b *strings.Builder, owner *instance, x value) {
	switch x := x.(type) {
	case *storage:
		if l.seen(b, x) {
			return
		}
		if x.owner == owner {
			l.place[x] = len(l.storages)
			l.storages = append(l.storages, x)
			fmt.Fprintf(b, "$%s:%d:%d:%t;", x.param.Type, x.stage, x.segment, x.buffer)
			return
		}
	case *instance:
		if l.seen(b, x) {
			return
		}
		if l.incomplete = l.incomplete || x.parent != owner; !l.incomplete {
			fmt.Fprintf(b, "%s@%d:%d:", x.name, x.stage, x.segment)
			l.instance(b, x)
		}
		return
	case list:
		b.WriteByte('[')
		for _, item := range x.items {
			l.value(b, owner, item)
		}
		b.WriteByte(']')
		return
	case *cellList:
		b.WriteByte('[')
		for _, item := range x.sequence() {
			l.value(b, owner, item)
		}
		b.WriteByte(']')
		return
	}
	key(b, x) // of a parameter from outside: which one it is
}

// seen writes the place of x if it has one.
func (l *likeness) seen(b *strings.Builder, x value) bool {
	n, ok := l.place[x]
	if ok {
		fmt.Fprintf(b, "^%d;", n)
	}
	return ok
}

// site is a way of calling a cell of a class. The operations of a cell of the library carry the place of the call.
type site struct {
	class     *class
	signature string
	from      diag.Pos
}

func siteOf(inst *instance, signature string, from diag.Range) site {
	if inst.class.file.std {
		return site{inst.class, signature, from.Pos}
	}
	return site{inst.class, signature, diag.Pos{}}
}

// elaborated is a construct with the cell that it was made for.
type elaborated struct {
	*compiled
	inst *instance
}

// twin returns the construct of a cell of the same likeness, read with the parameters of inst; nil if there is none yet.
// Thus the time to elaborate a model follows the number of its different cells.
func (e *elaborator) twin(inst *instance, way site) *compiled {
	for _, made := range e.twins[way] {
		mine, theirs := inst.like(), made.inst.like()
		if mine.incomplete || mine.text != theirs.text {
			continue
		}
		for n, i := range mine.instances[1:] {
			i.applied = i.applied || theirs.instances[n+1].applied
		}
		c := *made.compiled
		c.passed, c.written = slices.Clone(c.passed), slices.Clone(c.written)
		for _, list := range [][]*storage{c.passed, c.written} {
			for n, p := range list {
				if at, ok := theirs.place[p]; ok {
					list[n] = mine.storages[at]
				}
			}
		}
		c.sites = slices.Clone(c.sites)
		for n, path := range c.sites {
			c.sites[n] = inst.path() + strings.TrimPrefix(path, made.inst.path())
		}
		return &c
	}
	return nil
}
