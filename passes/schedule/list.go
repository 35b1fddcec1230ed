package schedule

import "github.com/ppc-lang/ppc/plan"

// backwardFirst is the order of 1f1b where stages do not repeat along the data, such as up and down again. It is what
// stages do that work greedily in rounds of equal length: each takes a backward pass if one is ready, else a forward
// pass; the oldest micro-batch comes first, then the later chunk. A pass is ready when the pass before it along the data
// ended in an earlier round. At most as many micro-batches are in flight as there are stages, so no chunk ever
// keeps more, as in 1f1b of one chunk.
//
// Where the segments of a V or W are equally long this takes 2(stages-1) rounds more than the work of a stage, as fill and
// drain of a pipeline must; a higher bound does not make it shorter.
//
// Since every pass runs in a round behind those it depends on, the rounds are a topological order of all actions. Passes
// of a chunk ascend, because those of the chunk before do and the oldest is taken first.
func backwardFirst(chunks []*plan.Chunk, stages, micros int) [][]step {
	var line []*plan.Chunk // what the data pass
	for _, c := range chunks {
		if !c.Empty() {
			line = append(line, c)
		}
	}
	out := make([][]step, stages)
	if len(line) == 0 {
		return out
	}
	last := len(line) - 1
	forward, backward := make([]int, len(line)), make([]int, len(line)) // micro-batches done, by place in the line
	for backward[0] < micros {
		taken := make([]step, stages) // by stage; chunk is a place in the line
		chosen := make([]bool, stages)
		offer := func(x step) {
			s := line[x.chunk].Stage
			t := taken[s]
			better := !chosen[s]
			switch {
			case better:
			case x.kind != t.kind:
				better = x.kind == plan.InputGrad
			default:
				better = x.micro < t.micro || x.micro == t.micro && x.chunk > t.chunk
			}
			if better {
				taken[s], chosen[s] = x, true
			}
		}
		for i := range line {
			if m := forward[i]; i == 0 && m < min(micros, backward[0]+stages) || i > 0 && m < forward[i-1] {
				offer(step{plan.Forward, i, m})
			}
			if m := backward[i]; i == last && m < forward[i] || i < last && m < backward[i+1] {
				offer(step{plan.InputGrad, i, m})
			}
		}
		for s, x := range taken {
			if !chosen[s] {
				continue
			}
			if x.kind == plan.Forward {
				forward[x.chunk]++
			} else {
				backward[x.chunk]++
			}
			x.chunk = line[x.chunk].ID
			out[s] = append(out[s], x)
		}
	}
	return out
}
