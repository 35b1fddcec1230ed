package ascend

import (
	"fmt"
	"strings"
)

// A vectorProgram is a straight list of vector calls on tiles. Ops are lowered
// to it one by one, so that an op computes the same bits fused or alone.
type vectorProgram struct {
	registers    []registerInfo
	instructions []instruction
}

// register is a tile in the unified buffer; 0 is none.
type register int

type registerInfo struct {
	element string
	row     bool   // holds one row of the tile that stands for all of them
	tensor  string // C++ name; work registers get theirs when slots are assigned
	mask    bool   // bits of a comparison
}

// instruction is a call: name(destination, sources..., extra, count).
type instruction struct {
	name    string
	dst     register
	sources []register
	extra   string
	// raw: operands seen as float, as Select only moves them.
	raw bool
	// assign: `if (assign)` copies the second source, else name runs.
	assign bool
}

func newVectorProgram() *vectorProgram { return &vectorProgram{registers: make([]registerInfo, 1)} }

func (p *vectorProgram) add(info registerInfo) register {
	p.registers = append(p.registers, info)
	return register(len(p.registers) - 1)
}

func (p *vectorProgram) info(r register) *registerInfo { return &p.registers[r] }

// emit appends a call whose result is a new work register.
func (p *vectorProgram) emit(name, element, extra string, sources ...register) register {
	row := len(sources) > 0
	for _, s := range sources {
		row = row && p.info(s).row
	}
	dst := p.add(registerInfo{element: element, row: row})
	p.instructions = append(p.instructions, instruction{name: name, dst: dst, sources: sources, extra: extra})
	return dst
}

func (p *vectorProgram) binary(name string, a, b register) register {
	return p.emit(name, p.info(a).element, "", a, b)
}

func (p *vectorProgram) scalar(name string, a register, value string) register {
	return p.emit(name, p.info(a).element, value, a)
}

func (p *vectorProgram) unary(name string, a register) register {
	return p.emit(name, p.info(a).element, "", a)
}

func (p *vectorProgram) duplicate(element, value string) register {
	return p.emit("Duplicate", element, value)
}

func (p *vectorProgram) cast(a register, element, mode string) register {
	return p.emit("Cast", element, "RoundMode::"+mode, a)
}

// full spreads a row register over the tile.
func (p *vectorProgram) full(a register) register {
	if !p.info(a).row {
		return a
	}
	dst := p.add(registerInfo{element: p.info(a).element})
	p.instructions = append(p.instructions, instruction{name: "Muls", dst: dst, sources: []register{a}, extra: p.one(a)})
	return dst
}

// one is the literal 1 of the register's type; multiplying by it copies.
func (p *vectorProgram) one(a register) string {
	if p.info(a).element == "int32_t" {
		return "static_cast<int32_t>(1)"
	}
	return "1.0f"
}

// compare gives the mask of a comparison of a with a register or, when b is 0, with a scalar.
func (p *vectorProgram) compare(a, b register, scalar, mode string) register {
	a = p.full(a)
	in := instruction{name: "CompareScalar", sources: []register{a}, extra: scalar + ", CMPMODE::" + mode}
	if b != 0 {
		in = instruction{name: "Compare", sources: []register{a, p.full(b)}, extra: "CMPMODE::" + mode}
	}
	in.dst = p.add(registerInfo{element: "uint8_t", mask: true})
	p.instructions = append(p.instructions, in)
	return in.dst
}

// choose gives a where the mask is set and b, or the scalar when b is 0, elsewhere.
func (p *vectorProgram) choose(mask, a, b register, scalar string) register {
	a = p.full(a)
	in := instruction{name: "Select", raw: true, sources: []register{mask, a}, extra: scalar + ", SELMODE::VSEL_TENSOR_SCALAR_MODE"}
	if b != 0 {
		in.sources = append(in.sources, p.full(b))
		in.extra = "SELMODE::VSEL_TENSOR_TENSOR_MODE"
	}
	in.dst = p.add(registerInfo{element: p.info(a).element})
	p.instructions = append(p.instructions, in)
	return in.dst
}

// into makes the program leave a in the register dst, which is an output's tensor. Where a is
// work that only this output takes, its last writer writes there at once.
func (p *vectorProgram) into(dst, a register) {
	info := p.info(a)
	if info.tensor == "" && !info.row {
		for i := range p.instructions {
			in := &p.instructions[i]
			if in.dst == a {
				in.dst = dst
			}
			for j, s := range in.sources {
				if s == a {
					in.sources[j] = dst
				}
			}
		}
		info.tensor = p.info(dst).tensor
		return
	}
	p.instructions = append(p.instructions, instruction{name: "Muls", dst: dst, sources: []register{a}, extra: p.one(a)})
}

// assignSlots gives every work register a slot that no other living register
// has and returns the number of slots of tiles and of masks.
func (p *vectorProgram) assignSlots() (tiles, masks int) {
	last := make([]int, len(p.registers))
	for i, in := range p.instructions {
		last[in.dst] = i
		for _, s := range in.sources {
			last[s] = i
		}
	}
	var free [2][]int
	count := [2]int{}
	slot := make([]int, len(p.registers))
	for i, in := range p.instructions {
		info := p.info(in.dst)
		class := 0
		if info.mask {
			class = 1
		}
		if info.tensor == "" {
			if n := len(free[class]); n > 0 {
				slot[in.dst] = free[class][n-1]
				free[class] = free[class][:n-1]
			} else {
				slot[in.dst] = count[class]
				count[class]++
			}
			info.tensor = fmt.Sprintf("%s%d", [2]string{"tile", "mask"}[class], slot[in.dst])
			if class == 0 && info.element != "float" {
				info.tensor += fmt.Sprintf(".ReinterpretCast<%s>()", info.element)
			}
		}
		ended := append([]register{in.dst}, in.sources...)
		for k, r := range ended {
			again := false
			for _, earlier := range ended[:k] {
				again = again || earlier == r
			}
			name := p.info(r).tensor
			if again || last[r] != i || !(strings.HasPrefix(name, "tile") || strings.HasPrefix(name, "mask")) {
				continue
			}
			class := 0
			if p.info(r).mask {
				class = 1
			}
			free[class] = append(free[class], slot[r])
		}
	}
	return count[0], count[1]
}

// write emits the calls, with a barrier before each one that depends on an
// earlier one. rows tells whether tiles may have several rows; `count` and
// `pitch` are C++ variables of the surrounding loop.
func (p *vectorProgram) write(c *code, rows bool) {
	read, written := map[string]bool{}, map[string]bool{}
	base := func(r register) string {
		name, _, _ := strings.Cut(p.info(r).tensor, ".")
		return name
	}
	for _, in := range p.instructions {
		clash := written[base(in.dst)] || read[base(in.dst)]
		for _, s := range in.sources {
			clash = clash || written[base(s)]
		}
		if clash {
			c.line("PipeBarrier<PIPE_V>();")
			clear(read)
			clear(written)
		}
		p.writeCall(c, in, rows)
		written[base(in.dst)] = true
		for _, s := range in.sources {
			read[base(s)] = true
		}
	}
}

func (p *vectorProgram) writeCall(c *code, in instruction, rows bool) {
	loop := false
	for _, s := range in.sources {
		loop = loop || p.info(s).row
	}
	// A row register's own arithmetic is one row long.
	single := p.info(in.dst).row
	loop = loop && rows && !single
	count := "count"
	if single || loop {
		count = "pitch"
	}
	if strings.HasPrefix(in.name, "Compare") {
		count = "roundedCount"
	}
	name := func(r register) string {
		info := p.info(r)
		tensor := info.tensor
		if in.raw && !info.mask && info.element != "float" {
			tensor += ".ReinterpretCast<float>()"
		}
		if loop && !info.row {
			tensor += "[row * pitch]"
		}
		return tensor
	}
	arguments := []string{name(in.dst)}
	for _, s := range in.sources {
		arguments = append(arguments, name(s))
	}
	if in.extra != "" {
		arguments = append(arguments, in.extra)
	}
	call := fmt.Sprintf("%s(%s, %s);", in.name, strings.Join(arguments, ", "), count)
	switch {
	case in.assign:
		c.open("if (assign)")
		c.line("Muls(%s, %s, %s, %s);", arguments[0], arguments[2], p.one(in.sources[1]), count)
		c.depth--
		c.line("} else {")
		c.depth++
		c.line("%s", call)
		c.close()
	case loop:
		c.open("for (uint32_t row = 0; row < rows; row++)")
		c.line("%s", call)
		c.close()
	default:
		c.line("%s", call)
	}
}
