package runtime

import (
	"slices"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
)

// setting is something that all ranks of a run must have in common and that the plan does not say: a value, or the digest of a
// content.
type setting struct {
	what    string
	value   float64
	content bool
}

// readContents notes the digests of all that this process has read, as many on all ranks.
func (r *runner) readContents() error {
	add := func(what string, digest uint32) {
		r.contents = append(r.contents, setting{what, float64(digest), true})
	}
	for i, q := range r.plan.Programs {
		digest := uint32(0)
		if d := r.datasets[i]; d != nil {
			digest = d.Digest()
		}
		add("the data of block "+q.Name, digest)
	}
	inputs := slices.Clone(r.opt.Inputs)
	for i := range inputs {
		inputs[i].Name = "" // of its file
	}
	add("the inputs", data.Digest(inputs...))
	add("the first values", r.opt.InitialDigest)
	checkpoint := uint32(0)
	if r.resumed != nil {
		var err error
		if checkpoint, err = r.resumed.Digest(); err != nil {
			return err
		}
	}
	add("the checkpoint that the run goes on from", checkpoint)
	return nil
}

// settings are as many on all ranks.
func (r *runner) settings() []setting {
	flag := func(on bool) float64 {
		if on {
			return 1
		}
		return 0
	}
	list := []setting{
		{what: "the seed", value: float64(r.opt.Seed)},
		{what: "the last step", value: float64(r.total)},
		{what: "the step that the run begins with", value: float64(r.first)},
		{what: "the number of rows of the inputs", value: float64(r.rows)},
		{what: "the mean over micro-batches", value: flag(r.opt.Reduction == "mean")},
		{what: "first values from a file", value: flag(r.opt.Initial != nil)},
		{what: "norms of gradients in the log", value: flag(r.opt.Norms)},
		{what: "the comparison of copies", value: flag(r.opt.Digests)},
		{what: "leaving evaluations out", value: flag(r.opt.SkipEval)},
		{what: "leaving the parameters out", value: flag(r.opt.SkipParams)},
		{what: "a folder for checkpoints", value: flag(r.opt.Checkpoint.Dir != "")},
		{what: "steps between checkpoints", value: float64(r.opt.Checkpoint.Every)},
	}
	for i, q := range r.plan.Programs {
		rows := 0
		if i < len(r.datasets) && r.datasets[i] != nil { // a session has none
			rows = r.datasets[i].Rows()
		}
		list = append(list, setting{what: "the number of rows of the data of block " + q.Name, value: float64(rows)})
	}
	return append(list, r.contents...)
}

// agree holds that ranks in other processes have the same settings: their processes have been started apart, perhaps on hosts with
// other files.
func (r *runner) agree(k *rank) error {
	list := r.settings()
	var own []float64
	for _, s := range list {
		own = append(own, s.value)
	}
	all, err := k.world.Gather(own)
	if err != nil {
		return k.during("comparing settings", err)
	}
	for other, values := range all {
		for i, s := range list {
			switch {
			case values[i] == s.value:
			case s.content:
				return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "rank %d and rank %d have read different files for %s", k.number, other, s.what).
					WithRepair("give all hosts the same files")}
			default:
				return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "rank %d and rank %d are not of one run: %s is %v for the one and %v for the other", k.number, other, s.what, s.value, values[i]).
					WithRepair("give all ranks the same flags and the same files")}
			}
		}
	}
	return nil
}
