package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Schedule is a number for every training step, counted from 0.
//
//	constant(v)               v
//	warmup(n) then s          s(0) (step+1)/n in the first n steps, then s from its own step 0
//	cosine(max, min, n)       min + (max-min) (1 + cos(pi min(step, n)/n)) / 2 (Loshchilov and Hutter, 2017)
//	bias_correction(beta)     1 - beta^(step+1) (Kingma and Ba, 2015)
type Schedule struct {
	Kind string
	Args []float64 `yaml:"args,flow"`
	Then *Schedule `yaml:"then,omitempty"`
}

// scheduleArgs is how many arguments each kind has.
var scheduleArgs = map[string]int{"constant": 1, "warmup": 1, "cosine": 3, "bias_correction": 1}

// maxScheduleDepth bounds warmups of warmups.
const maxScheduleDepth = 100

// Check finds schedules that At cannot compute.
func (s *Schedule) Check() error {
	for depth := 0; s != nil; depth, s = depth+1, s.Then {
		n, ok := scheduleArgs[s.Kind]
		if !ok || len(s.Args) != n || (s.Kind == "warmup") != (s.Then != nil) || depth > maxScheduleDepth {
			return fmt.Errorf("the schedule `%s` is malformed", s.Kind)
		}
		if s.Kind == "warmup" && !(s.Args[0] >= 1) || s.Kind == "cosine" && !(s.Args[2] >= 1) {
			return fmt.Errorf("the schedule `%s` has no steps", s.Kind)
		}
	}
	return nil
}

// At is the number of a step.
func (s *Schedule) At(step int) float64 {
	switch s.Kind {
	case "warmup":
		if n := int(s.Args[0]); step >= n {
			return s.Then.At(step - n)
		}
		return s.Then.At(0) * float64(step+1) / s.Args[0]
	case "cosine":
		top, low, n := s.Args[0], s.Args[1], s.Args[2]
		return low + (top-low)/2*(1+math.Cos(math.Pi*min(float64(step), n)/n))
	case "bias_correction":
		return 1 - math.Pow(s.Args[0], float64(step+1))
	}
	return s.Args[0]
}

// Describe writes the schedule so that equal texts mean equal schedules.
func (s *Schedule) Describe(b *strings.Builder) {
	b.WriteString(s.Kind)
	for _, a := range s.Args {
		b.WriteString(" " + strconv.FormatFloat(a, 'g', -1, 64))
	}
	if s.Then != nil {
		b.WriteString(" then ")
		s.Then.Describe(b)
	}
}
