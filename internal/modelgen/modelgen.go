// Package modelgen draws random models as .pp text: chains and branches of cells, several tensors and skip edges across
// stages, nested cells, cells used twice, tables that drawn numbers choose rows of, unmarked operations between marked
// cells, every differentiable operation. Each model trains, and is there as an infer block too.
package modelgen

import (
	"fmt"
	"slices"
	"strings"
)

// Source makes choices: a property test draws them, a bench run takes them from a generator.
type Source interface {
	// Int returns a number from lo to hi, both included.
	Int(name string, lo, hi int) int
}

// Model is a drawn model with its inputs x f32[Batch,Width] and label (i32[Batch] or f32[Batch,Classes]).
type Model struct {
	train   string // with %CUT% for the marks
	infer   string
	Cuts    []Cut // legal cuts as entries of a train block
	Batch   int
	Width   int
	Classes int
	Integer bool // labels are classes
}

// Cut is a legal placement.
type Cut struct {
	Stages int
	Entry  string
}

// value is a tensor [batch, width] in the construct under way, with the unit that made it.
type value struct {
	name  string
	width int
	unit  int
}

// weight is that of a Dense layer: [out, in].
type weight struct {
	unit    string
	in, out int
}

type drawer struct {
	src Source
	// What there is to choose from; kinds is the highest kind of unit, stages the largest number of stages.
	activations, optimizers []string
	kinds, stages           int

	cells   strings.Builder
	unit    int
	values  []value
	member  []string // declarations of the network
	body    []string // of its construct
	names   []string // marked members, by unit
	weights []weight
	ids     []value // i32[batch], of so many classes
}

// activations of one operand that are smooth enough everywhere, or piecewise linear.
var activations = []string{"relu(%s)", "tanh(%s)", "sigmoid(%s)", "gelu(%s)", "exp(0.1 * %s)", "log(abs(%s) + 1.5)", "sqrt(abs(%s) + 0.5)", "-%s", "abs(%s)", "%s * 0.5"}

var combinations = []string{"%s + %s", "%s - %s", "%s * %s", "%s / (abs(%s) + 2.0)", "maximum(%s, %s)", "minimum(%s, %s)", "where(less(%s, %s), a * 0.3, b)"}

// decoderActivations have no kernels on a chip yet.
var decoderActivations = []string{"softmax(%s)", "rsqrt(abs(%s) + 0.5)", "dropout(%s, 0.25)", "tril(%s)", "dropout(softmax(%s * 2.0), 0.5)"}

// decoderOptimizers have states, schedules, or parameters of their own.
var decoderOptimizers = []string{
	"SGD(lr = 0.05)", "SGD(lr = warmup(3, 0.05), momentum = 0.9, weight_decay = 0.01)", "Adam(lr = cosine(0.01, 0.001, 3))",
	"AdamW(lr = 0.01, weight_decay = 0.1, groups = { \"*.bias\": { weight_decay: 0 }, \"head.*\": { lr: 0.02 } })",
}

// frozen leaves something to train.
var frozen = []string{"", "", "", "    frozen = head.weight\n", "    frozen = \"*.weight\"\n"}

// Draw draws a model with the operations that every target has.
func Draw(src Source) Model {
	return draw(&drawer{src: src, activations: activations, optimizers: decoderOptimizers[:1], kinds: 8, stages: 4})
}

// DrawDecoder draws from all operations and optimizers.
func DrawDecoder(src Source) Model {
	return draw(&drawer{src: src, activations: append(append([]string{}, activations...), decoderActivations...), optimizers: decoderOptimizers, kinds: 13, stages: 6})
}

func draw(d *drawer) Model {
	src := d.src
	m := Model{Batch: 8, Width: src.Int("width", 1, 9), Classes: src.Int("classes", 2, 5), Integer: src.Int("loss", 0, 1) == 0}
	d.values = []value{{"x", m.Width, -1}}
	units := src.Int("units", 1, 7)
	for d.unit = 0; d.unit < units; d.unit++ {
		d.add()
	}
	last := d.values[len(d.values)-1]
	// The head reads the newest value; what leads nowhere else stays as a branch that no gradient reaches.
	d.names = append(d.names, "head")
	d.member = append(d.member, fmt.Sprintf("head = Dense(%d, %d)", last.width, m.Classes))
	d.body = append(d.body, fmt.Sprintf("scores = head(%s)", last.name))
	d.mark()
	results := "scores"
	if n := len(d.values); n > 1 && src.Int("results", 0, 1) == 1 {
		results += ", " + d.values[src.Int("result", 1, n-1)].name
	}
	label, loss := fmt.Sprintf("f32[%d, %d]", m.Batch, m.Classes), "MSELoss()"
	if m.Integer {
		label, loss = fmt.Sprintf("i32[%d]", m.Batch), "CrossEntropyLoss()"
	}
	optimizer, choices := d.choose("optimizer", d.optimizers), len(frozen)
	if strings.Contains(optimizer, "groups") {
		choices = 1 // every group has something to train
	}
	m.train = d.network("scores") + fmt.Sprintf("train random {\n    network = Net()\n    loss = %s\n    optimizer = %s\n    input x: f32[%d, %d]\n    input label: %s\n    micro_batch_num = 2\n%s%s    dataset = npz(\"data.npz\", columns = [\"x\", \"label\"]) | batch(%d)\n}\n",
		loss, optimizer, m.Batch, m.Width, label, d.choose("frozen", frozen[:choices]), "%CUT%", m.Batch)
	m.infer = d.network(results) + fmt.Sprintf("infer random {\n    network = Net()\n    input x: f32[%d, %d]\n    micro_batch_num = 2\n    output_broadcast = %t\n%s    dataset = npz(\"data.npz\", columns = [\"x\"]) | batch(%d)\n}\n",
		m.Batch, m.Width, src.Int("broadcast", 0, 1) == 1, "%CUT%", m.Batch)
	for stages := 1; stages <= min(d.stages, len(d.names)); stages++ {
		m.Cuts = append(m.Cuts, d.cut(stages))
		if stages > 1 {
			m.Cuts = append(m.Cuts, d.interleaved(stages), d.segmented(stages))
		}
	}
	return m
}

// mark asks for some of the cells to be functions, or not.
func (d *drawer) mark() {
	text := d.cells.String()
	d.cells.Reset()
	for i, line := range strings.SplitAfter(text, "\n") {
		if strings.HasPrefix(line, "cell ") {
			d.cells.WriteString(d.choose(fmt.Sprintf("mark%d", i), []string{"", "@lazy_inline\n", "@lazy_inline(policy = \"front\")\n"}))
		}
		d.cells.WriteString(line)
	}
}

// network is the text of all cells; the network returns these values.
func (d *drawer) network(results string) string {
	var b strings.Builder
	b.WriteString(d.cells.String())
	b.WriteString("cell Net {\n")
	for _, l := range d.member {
		fmt.Fprintf(&b, "    %s\n", l)
	}
	b.WriteString("    construct(x) {\n")
	for _, l := range append(d.body, "return "+results) {
		fmt.Fprintf(&b, "        %s\n", l)
	}
	b.WriteString("    }\n}\n")
	return b.String()
}

// With returns the text with a cut, Unmarked without marks.
func (m *Model) With(c Cut) string { return strings.Replace(m.train, "%CUT%", c.Entry, 1) }
func (m *Model) Unmarked() string  { return m.With(Cut{}) }

// InferWith and InferUnmarked are the model as an infer block, which may have a second result.
func (m *Model) InferWith(c Cut) string { return strings.Replace(m.infer, "%CUT%", c.Entry, 1) }
func (m *Model) InferUnmarked() string  { return m.InferWith(Cut{}) }

// cut draws non-decreasing stages for the marked members; units only read earlier units, so it is legal.
func (d *drawer) cut(stages int) Cut {
	n := len(d.names)
	ends := map[int]bool{}
	for s := range stages - 1 {
		e := d.src.Int(fmt.Sprintf("cut%d.%d", stages, s), 1, n-1)
		for ends[e] {
			e = e%(n-1) + 1
		}
		ends[e] = true
	}
	var entries []string
	stage := 0
	for i, name := range d.names {
		if ends[i] {
			stage++
		}
		entries = append(entries, fmt.Sprintf("%s: %d", name, stage))
	}
	return Cut{stages, fmt.Sprintf("    stage_config = { %s }\n", strings.Join(entries, ", "))}
}

// interleaved draws any stage for any member; stages that go down start further chunks.
func (d *drawer) interleaved(stages int) Cut {
	n := len(d.names)
	on := make([]int, n)
	for i := range on {
		on[i] = d.src.Int(fmt.Sprintf("stage%d.%d", stages, i), 0, stages-1)
	}
	for s := range stages {
		on[s*n/stages] = s
	}
	entries := make([]string, n)
	for i, name := range d.names {
		entries[i] = fmt.Sprintf("%s: %d", name, on[i])
	}
	return Cut{stages, fmt.Sprintf("    interleave = true\n    stage_config = { %s }\n", strings.Join(entries, ", "))}
}

// segmented draws up to three segments, in each of which the stages go up or down, and puts the members there in order.
func (d *drawer) segmented(stages int) Cut {
	n := len(d.names)
	segments := d.src.Int(fmt.Sprintf("segments%d", stages), 1, 3)
	down := make([]bool, segments)
	for k := range down {
		down[k] = d.src.Int(fmt.Sprintf("down%d.%d", stages, k), 0, 1) == 1
	}
	whole := d.src.Int(fmt.Sprintf("whole%d", stages), 0, segments-1) // a segment that uses every stage
	var at []int
	for i := range n {
		if i < stages {
			at = append(at, whole*stages+i)
		} else {
			at = append(at, d.src.Int(fmt.Sprintf("place%d.%d", stages, i), 0, segments*stages-1))
		}
	}
	slices.Sort(at)
	on, in := make([]string, n), make([]string, n)
	for i, name := range d.names {
		segment, stage := at[i]/stages, at[i]%stages
		if down[segment] {
			stage = stages - 1 - stage
		}
		on[i], in[i] = fmt.Sprintf("%s: %d", name, stage), fmt.Sprintf("%s: %d", name, segment)
	}
	return Cut{stages, fmt.Sprintf("    stage_config = { %s }\n    segment_config = { %s }\n", strings.Join(on, ", "), strings.Join(in, ", "))}
}

func (d *drawer) choose(name string, from []string) string {
	return from[d.src.Int(name, 0, len(from)-1)]
}

// pick takes one of the values, the newest more often.
func (d *drawer) pick(name string) value {
	i := d.src.Int(name, 0, len(d.values)+1)
	return d.values[min(i, len(d.values)-1)]
}

// fit gives a value of the wanted width: itself, or a slice or concatenation of it.
func (d *drawer) fit(v value, width int) string {
	s := v.name
	for w := v.width; w < width; w += v.width {
		s = fmt.Sprintf("concat([%s, %s], axis = 1)", s, v.name)
	}
	if v.width != width && (width%v.width != 0 || v.width > width) {
		s = fmt.Sprintf("%s[.., 0..%d]", s, width)
	}
	return s
}

// add draws one unit: a marked cell, and sometimes an unmarked operation behind it.
func (d *drawer) add() {
	name, cell := fmt.Sprintf("u%d", d.unit), fmt.Sprintf("C%d", d.unit)
	key := func(s string) string { return fmt.Sprintf("unit%d.%s", d.unit, s) }
	a := d.pick(key("a"))
	out := fmt.Sprintf("y%d", d.unit)
	width := d.src.Int(key("width"), 1, 7)
	act := d.choose(key("act"), d.activations)
	switch kind := d.src.Int(key("kind"), 0, d.kinds); kind {
	case 0: // a layer
		d.weights = append(d.weights, weight{name, a.width, width})
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(x) { return %s }\n}\n", cell, a.width, width, fmt.Sprintf(act, "fc(x)"))
		d.put(name, cell, out, width, a.name)
	case 1: // nested cells, an inner value used several times
		fmt.Fprintf(&d.cells, "cell %sInner {\n    fc = Dense(%d, %d, bias = false)\n    param w: f32[%d] = uniform(0.5)\n    construct(x) { y = fc(x); return y * w + y, %s }\n}\n", cell, a.width, width, width, fmt.Sprintf(act, "y"))
		fmt.Fprintf(&d.cells, "cell %s {\n    one = %sInner()\n    construct(x) {\n        p, q = one(x)\n        return p + q + p * 0.25\n    }\n}\n", cell, cell)
		d.put(name, cell, out, width, a.name)
	case 2: // two tensors in, of one width
		b := d.pick(key("b"))
		comb := fmt.Sprintf(d.choose(key("comb"), combinations), "a", "b")
		fmt.Fprintf(&d.cells, "cell %s {\n    param w: f32[%d] = uniform(1.0)\n    construct(a, b) { return (%s) + w * a }\n}\n", cell, a.width, comb)
		d.put(name, cell, out, a.width, a.name+", "+d.slice(b, a.width, key("b")))
	case 3: // two tensors out, both used later
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(x) { y = fc(x); return %s, y * y }\n}\n", cell, a.width, width, fmt.Sprintf(act, "y"))
		d.names = append(d.names, name)
		d.member = append(d.member, fmt.Sprintf("%s = %s()", name, cell))
		d.body = append(d.body, fmt.Sprintf("%s, %sb = %s(%s)", out, out, name, a.name))
		d.values = append(d.values, value{out + "b", width, d.unit}, value{out, width, d.unit})
		d.body = append(d.body, fmt.Sprintf("%sc = %s + %sb * 0.125", out, out, out)) // unmarked
		d.values = append(d.values, value{out + "c", width, d.unit})
	case 4: // one cell used twice: its parameters have two reads
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(x) { y = fc(x); z = fc(x * 0.5); return %s + z }\n}\n", cell, a.width, width, fmt.Sprintf(act, "y"))
		d.put(name, cell, out, width, a.name)
	case 5: // products of activations, reductions, transposition
		fmt.Fprintf(&d.cells, "cell %s {\n    param w: f32[%d, %d] = xavier_uniform()\n    construct(x) {\n        y = matmul(x, w)\n        g = matmul(transpose(y, [1, 0]), y)\n        z = matmul(y, g) * 0.01\n        return %s + mean(z, axes = [1], keepdims = true) + sum(y, axes = [0], keepdims = true) * 0.1\n    }\n}\n", cell, a.width, width, fmt.Sprintf(act, "z"))
		d.put(name, cell, out, width, a.name)
	case 7, 8: // the weight of an earlier layer, passed as an argument or returned as a value
		if len(d.weights) == 0 {
			kind = 0
		}
		if kind == 0 {
			fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(x) { return %s }\n}\n", cell, a.width, width, fmt.Sprintf(act, "fc(x)"))
			d.put(name, cell, out, width, a.name)
			break
		}
		w := d.weights[d.src.Int(key("weight"), 0, len(d.weights)-1)]
		arg := d.slice(a, w.in, key("b"))
		if kind == 7 {
			fmt.Fprintf(&d.cells, "cell %s(w: param) {\n    construct(x) { return matmul(x, w, transpose_b = true) }\n}\n", cell)
			d.put(name, fmt.Sprintf("%s(w = %s.fc.weight)", cell, w.unit), out, w.out, arg)
			break
		}
		fmt.Fprintf(&d.cells, "cell %s {\n    construct(x, w) { return matmul(x, w, transpose_b = true) + %s }\n}\n", cell, fmt.Sprintf("mean(%s)", "w"))
		d.put(name, cell, out, w.out, arg+", "+w.unit+".fc.weight")
	case 9: // layer norm and dropout cells, used twice
		fmt.Fprintf(&d.cells, "cell %s {\n    norm = LayerNorm(%d)\n    fc = Dense(%d, %d)\n    drop = Dropout(0.3)\n    construct(x) { return drop(fc(norm(x))) + %s + drop(fc(norm(x * 0.5))) }\n}\n", cell, a.width, a.width, width, fmt.Sprintf(act, "fc(x)"))
		d.put(name, cell, out, width, a.name)
	case 10: // masked attention among the rows of the micro-batch; the parts of a split are joined the other way round
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(x) {\n        a, b = split(fc(x), 2, axis = -1)\n        n = x.shape[0]\n        s = where(tril(ones([n, n], bool)), matmul(a, b, transpose_b = true), -inf)\n        return concat([b, matmul(softmax(s), a)], axis = -1)\n    }\n}\n", cell, a.width, 2*width)
		d.put(name, cell, out, 2*width, a.name)
	case 11: // whole numbers beside numbers: rows of a table are chosen by them, here or later
		ids := fmt.Sprintf("i%d", d.unit)
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(x) { y = fc(x); return %s, argmax(y) }\n}\n", cell, a.width, width, fmt.Sprintf(act, "y"))
		d.names = append(d.names, name)
		d.member = append(d.member, fmt.Sprintf("%s = %s()", name, cell))
		d.body = append(d.body, fmt.Sprintf("%s, %s = %s(%s)", out, ids, name, a.name))
		d.values = append(d.values, value{out, width, d.unit})
		d.ids = append(d.ids, value{ids, width, d.unit})
	case 12: // a table, and sometimes its weight used again by a later product
		ids := fmt.Sprintf("argmax(%s)", a.name)
		rows := a.width
		if len(d.ids) > 0 {
			v := d.ids[d.src.Int(key("ids"), 0, len(d.ids)-1)]
			ids, rows = v.name, v.width
		}
		d.weights = append(d.weights, weight{name, width, rows})
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Embedding(%d, %d)\n    construct(x, ids) { y = fc(ids); return %s + mean(x, axes = [1], keepdims = true) }\n}\n", cell, rows, width, fmt.Sprintf(act, "y"))
		d.put(name, cell, out, width, a.name+", "+ids)
	case 13: // buffers: what the micro-batch before left, and what this one leaves
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    buffer m: f32[%d] = constant(0.5)\n    buffer n: i32[1] = zeros()\n    construct(x) {\n        y = fc(x)\n        z = (%s) * m\n        m = 0.75 * m + 0.5 * mean(y, axes = [0])\n        n = n + 1\n        return z + m / cast(n, f32)\n    }\n}\n", cell, a.width, width, width, fmt.Sprintf(act, "y"))
		d.put(name, cell, out, width, a.name)
	case 6: // skip edge: an old value joins
		old := d.values[d.src.Int(key("old"), 0, len(d.values)-1)]
		fmt.Fprintf(&d.cells, "cell %s {\n    fc = Dense(%d, %d)\n    construct(a, b) { return fc(concat([a, b], axis = 1)) }\n}\n", cell, a.width+old.width, width)
		d.put(name, cell, out, width, a.name+", "+old.name)
	}
}

// slice gives b in the width of a through an unmarked operation.
func (d *drawer) slice(b value, width int, key string) string {
	if b.width == width {
		return b.name
	}
	name := fmt.Sprintf("s%d", d.unit)
	d.body = append(d.body, fmt.Sprintf("%s = %s", name, d.fit(b, width)))
	return name
}

func (d *drawer) put(name, cell, out string, width int, args string) {
	d.names = append(d.names, name)
	if !strings.HasSuffix(cell, ")") {
		cell += "()"
	}
	d.member = append(d.member, fmt.Sprintf("%s = %s", name, cell))
	d.body = append(d.body, fmt.Sprintf("%s = %s(%s)", out, name, args))
	d.values = append(d.values, value{out, width, d.unit})
}
