package runtime

import (
	"slices"

	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// meetings is what a rank has of the transport beside the messages of its programs.
type meetings struct {
	group transport.Group // the ranks of the stage
	shard transport.Group // those of the stage that share parameters out with this one
	same  transport.Group // those of the stage with the same parts
	// shards has the ranks of shard again, by the elements of the one buffer that they cut or put together.
	shards map[int]transport.Group
	column transport.Group // the ranks of all stages with the same part of the rows
	world  transport.Group // all ranks
	// reports carry what is told of a step from the first rank of a stage to the one that has the loss: a rank's own, or, on
	// that one, those of all others. results do so with parameters at the end, by Module.Params. Nil where this rank is at
	// neither end.
	reports []*reportLink // by stage
	results []transport.End
	outlets []*outlet // of an infer block
}

// LossRank is the first rank of the stage with the first result. It tells of steps and has the results of a run.
func LossRank(p *plan.Plan) int {
	if q := p.Programs[0]; len(q.Outputs) > 0 {
		return q.Outputs[0].Stage * p.Degree
	}
	return 0
}

// LargestMessage is the size of the largest message of a plan's programs, in bytes.
func LargestMessage(p *plan.Plan) (most int) {
	for _, q := range p.Programs {
		for _, m := range q.Messages {
			most = max(most, m.Bytes())
		}
		for _, o := range q.Outputs {
			if q.Infer {
				most = max(most, q.MicroBatches*o.Type.Bytes())
			}
		}
		for _, m := range q.Shared {
			n := 0
			for _, t := range m.Tensors {
				n += t.Type.Bytes()
			}
			most = max(most, n)
		}
	}
	return most
}

// sharedLengths lists how many elements parameters have of which ranks of the stages share something out, each once and ascending.
func sharedLengths(stages ...*plan.Stage) (list []int) {
	for _, st := range stages {
		for i := range st.Params {
			if sp := &st.Params[i]; sp.Shard > plan.ShardNone {
				list = append(list, sp.Elems())
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// meet joins the groups of a rank and opens the queues of its reports. id is the first number that no queue has.
func (r *runner) meet(k *rank, id int) {
	p := r.plan
	ranks := func(first, step, n int) (list []int) {
		for i := range n {
			list = append(list, first+i*step)
		}
		return list
	}
	lengths := func(buffers [][]float32) (list []int) {
		for _, b := range buffers {
			list = append(list, len(b))
		}
		return list
	}
	values, params := max(len(plan.Classes), len(r.settings())), 0
	for _, q := range p.Programs {
		values = max(values, 2*len(q.Outputs))
	}
	for _, st := range p.Stages {
		params = max(params, len(st.Params))
	}
	k.group = k.endpoint.Join(transport.Members{
		ID: id + k.stage, Ranks: ranks(k.stage*p.Degree, 1, p.Degree),
		Reduce: lengths(k.gradients), Values: p.Programs[0].MicroBatches,
	})
	id += p.NumStages
	groups := p.NumStages * p.Degree / p.ShardSize
	shard, members := k.number/p.ShardSize, ranks(k.number/p.ShardSize*p.ShardSize, 1, p.ShardSize)
	k.shard = k.endpoint.Join(transport.Members{ID: id + shard, Ranks: members, Collect: lengths(k.values), Part: p.Part, Values: params})
	id += groups
	k.same = k.endpoint.Join(transport.Members{
		ID: id + k.stage*p.ShardSize + k.replica%p.ShardSize, Ranks: ranks(k.stage*p.Degree+k.replica%p.ShardSize, p.ShardSize, p.Degree/p.ShardSize), Reduce: lengths(k.parts),
	})
	id += p.NumStages * p.ShardSize
	k.shards = map[int]transport.Group{}
	for _, n := range sharedLengths(p.Stages...) {
		if slices.Contains(sharedLengths(p.Stages[k.stage]), n) {
			k.shards[n] = k.endpoint.Join(transport.Members{ID: id + shard, Ranks: members, Collect: []int{n}, Scatter: n, Part: p.Part})
			k.sums = make([]float32, max(len(k.sums), 2*plan.PartSize(n, p.ShardSize)))
		}
		id += groups
	}
	k.column = k.endpoint.Join(transport.Members{ID: id + k.replica, Ranks: ranks(k.replica, p.Degree, p.NumStages), Values: max(params, checkpointValues)})
	id += p.Degree
	k.world = k.endpoint.Join(transport.Members{ID: id, Ranks: ranks(0, 1, p.NumStages*p.Degree), Values: values})
	id++
	if k.replica == 0 {
		r.openReports(k, id)
	}
	if p.Programs[0].Infer {
		r.openOutlets(k, id+p.NumStages+len(p.Module.Params))
	}
}

// openReports opens the queues of reports and of parameters. id is the first number that no queue has.
func (r *runner) openReports(k *rank, id int) {
	p, loss := r.plan, LossRank(r.plan)
	queue := func(id, stage, bytes int) transport.End {
		from := stage * p.Degree
		if from == loss || k.number != from && k.number != loss {
			return nil
		}
		return k.endpoint.End(transport.Queue{ID: id, From: from, To: loss, Outstanding: 1, Bytes: bytes})
	}
	k.reports = make([]*reportLink, p.NumStages)
	k.results = make([]transport.End, len(p.Module.Params))
	for s, st := range p.Stages {
		bytes := reportBytes(len(st.Params), r.opt)
		if end := queue(id+s, s, bytes); end != nil && bytes > 0 {
			k.reports[s] = &reportLink{End: end, buffers: [][]byte{make([]byte, bytes)}}
		}
		for _, sp := range st.Params {
			if n := sp.Param.Index(); sp.Owner == s && !r.opt.SkipParams {
				k.results[n] = queue(id+p.NumStages+n, s, sp.Param.Type.Bytes())
			}
		}
	}
}
