package runtime

import (
	"fmt"

	"github.com/ppc-lang/ppc/diag"
)

// setting is something that all ranks of a run must have in common and that the plan does not say.
type setting struct {
	what  string
	value float64
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
		{"the seed", float64(r.opt.Seed)},
		{"the last step", float64(r.total)},
		{"the step that the run begins with", float64(r.first)},
		{"the number of rows of the inputs", float64(r.rows)},
		{"the mean over micro-batches", flag(r.opt.Reduction == "mean")},
		{"first values from a file", flag(r.opt.Initial != nil)},
		{"norms of gradients in the log", flag(r.opt.Norms)},
		{"the comparison of copies", flag(r.opt.Digests)},
		{"leaving evaluations out", flag(r.opt.SkipEval)},
		{"leaving the parameters out", flag(r.opt.SkipParams)},
		{"a folder for checkpoints", flag(r.opt.Checkpoint.Dir != "")},
		{"steps between checkpoints", float64(r.opt.Checkpoint.Every)},
	}
	for i, q := range r.plan.Programs {
		rows := 0
		if i < len(r.datasets) && r.datasets[i] != nil { // a session has none
			rows = r.datasets[i].Rows()
		}
		list = append(list, setting{fmt.Sprintf("the number of rows of the data of block %s", q.Name), float64(rows)})
	}
	return list
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
			if values[i] != s.value {
				return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "rank %d and rank %d are not of one run: %s is %v for the one and %v for the other", k.number, other, s.what, s.value, values[i]).
					WithRepair("give all ranks the same flags and the same files")}
			}
		}
	}
	return nil
}
