// Package sharedparam handles parameters that several stages read: tied by passing them, by returning them as values, or
// by using a cell twice.
//
// A stage has one copy, whatever the number of its readers; the lowest stage that reads a parameter owns it. Once per step the
// others send the gradients of their reads to the owner, one tensor per read, since the fold over all reads in program order is
// part of the meaning; the owner folds, updates and sends the new value back. Names are identity, not pointers. First
// values need no message: they depend on name and seed only.
package sharedparam

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes/memplan"
	"github.com/ppc-lang/ppc/plan"
)

// Run settles the owner of every parameter, gives owners accumulators for the reads of other stages and optimizer
// states, and lists the messages of a training step.
func Run(p *plan.Plan, q *memplan.Program) {
	on := map[*ir.Param][]*place{} // stages that have the parameter, ascending
	for s, st := range p.Stages {
		for i := range st.Params {
			sp := &st.Params[i]
			on[sp.Param] = append(on[sp.Param], &place{s, st, sp})
		}
	}
	message := func(list *[]*plan.SharedMessage, from, to int, value bool) *plan.SharedMessage {
		for _, m := range *list {
			if m.From == from && m.To == to && m.Value == value {
				return m
			}
		}
		m := &plan.SharedMessage{ID: len(*list), From: from, To: to, Value: value}
		*list = append(*list, m)
		return m
	}
	reads := map[*ir.Param][]int{} // stages of the reads, in program order
	for i, s := range q.ReadStages() {
		reads[q.Reads[i]] = append(reads[q.Reads[i]], s)
	}
	for _, prm := range p.Module.Params {
		places := on[prm]
		if len(places) == 0 {
			continue
		}
		owner := places[0]
		trained := len(reads[prm]) > 0
		for _, x := range places {
			x.param.Owner = owner.index
		}
		if len(places) > 1 && trained {
			byStage := map[int]*place{}
			taken := map[int]int{}
			for _, x := range places {
				byStage[x.index] = x
			}
			var all []plan.Ref
			own := owner.param.Accumulators
			for _, s := range reads[prm] {
				if s == owner.index {
					all = append(all, own[taken[s]])
				} else {
					to := owner.item(owner.param.Value, plan.Gradients)
					all = append(all, to)
					m := message(&q.Shared, s, owner.index, false)
					m.Tensors = append(m.Tensors, plan.Tensor{Name: "grad." + prm.Name, Type: prm.Type, From: byStage[s].param.Accumulators[taken[s]], To: to})
				}
				taken[s]++
			}
			owner.param.Accumulators = all
			for _, x := range places[1:] {
				m := message(&q.Shared, owner.index, x.index, true)
				m.Tensors = append(m.Tensors, plan.Tensor{Name: prm.Name, Type: prm.Type, From: owner.param.Value, To: x.param.Value})
			}
		}
		if p.Optimizer != nil && trained {
			for range p.Optimizer.States {
				owner.param.States = append(owner.param.States, owner.item(owner.param.Value, plan.OptState))
			}
		}
	}
}

// place is a parameter on a stage.
type place struct {
	index int
	stage *plan.Stage
	param *plan.StageParam
}

// item adds a buffer like that of the value to the static area of a class.
func (x *place) item(value plan.Ref, class plan.Class) plan.Ref {
	it := x.stage.Areas[value.Area].Items[value.Item]
	for i := range x.stage.Areas {
		if a := &x.stage.Areas[i]; a.Class == class && a.Lifetime == plan.Static {
			a.Items = append(a.Items, it)
			return plan.Ref{Area: i, Item: len(a.Items) - 1}
		}
	}
	x.stage.Areas = append(x.stage.Areas, plan.Area{Class: class, Lifetime: plan.Static, Program: -1, Chunk: -1, Slots: 1, Items: []plan.Item{it}})
	return plan.Ref{Area: len(x.stage.Areas) - 1, Item: 0}
}
