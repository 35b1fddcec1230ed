package runtime

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// idle is a device that computes nothing; it may stop the time of one stage.
type idle struct {
	stage int
	slow  time.Duration
}

func (d *idle) Buffer(plan.Ref, int) []byte { return make([]byte, 64) }
func (d *idle) Run(int, int, ir.Pass, int, int) error {
	time.Sleep(d.slow)
	return nil
}
func (d *idle) FoldGradients() error                                  { return nil }
func (d *idle) BoundGradients(float32, float32) error                 { return nil }
func (d *idle) Value(int) []float32                                   { return nil }
func (d *idle) Squares([]float64) error                               { return nil }
func (d *idle) Update(int, []device.Pending, [][]float32, bool) error { return nil }
func (d *idle) SetParam(int, []float32) error                         { return nil }
func (d *idle) Param(int, []float32) error                            { return nil }
func (d *idle) Pack(int, []float32, []float32) error                  { return nil }
func (d *idle) Unpack(int, []float32, []float32) error                { return nil }
func (d *idle) Bytes() []int                                          { return make([]int, len(plan.Classes)) }
func (d *idle) Step(uint32)                                           {}
func (d *idle) Close() error                                          { return nil }

// twoStages is a hand-made forward program; the second stage waits for a message that the first may not send.
func twoStages(sends bool) *runner {
	ref := plan.Ref{}
	areas := []plan.Area{{Slots: 1, Items: []plan.Item{{Type: ir.Tensor(ir.F32, 1)}}}}
	q := &plan.Program{
		Name: "t", Infer: true, Batch: 1, Degree: 1, MicroBatches: 1,
		Chunks:   []*plan.Chunk{{Stage: 0}, {ID: 1, Stage: 1}},
		Messages: []*plan.Message{{From: 0, To: 1, Window: 1, Tensors: []plan.Tensor{{Type: ir.Tensor(ir.F32, 1), From: ref, To: ref}}}},
		Actions: [][]plan.Action{
			{{Kind: plan.Forward, Message: -1, Peer: -1}},
			{{Kind: plan.RecvForward, Chunk: 1, Peer: 0}, {Kind: plan.Forward, Chunk: 1, Message: -1, Peer: -1}},
		},
	}
	if sends {
		q.Actions[0] = append(q.Actions[0], plan.Action{Kind: plan.SendForward, Peer: 1})
	}
	p := &plan.Plan{NumStages: 2, Degree: 1, ShardSize: 1, Module: &ir.Module{}, Programs: []*plan.Program{q}}
	for range 2 {
		p.Stages = append(p.Stages, &plan.Stage{Areas: areas, Seed: plan.Ref{Area: -1, Item: -1}, Inputs: [][]plan.Ref{nil}})
	}
	return &runner{plan: p, stop: make(chan struct{}), datasets: []*data.Dataset{nil}}
}

func (r *runner) try(t *testing.T, slow time.Duration) error {
	t.Helper()
	r.opt.Open = func(_ context.Context, _ *plan.Plan, stage int, _ device.Options) (device.Device, error) {
		return &idle{stage, slow}, nil
	}
	if err := r.openRanks(context.Background()); err != nil {
		t.Fatal(err)
	}
	return r.all(context.Background(), func(k *rank) error { return k.run(0) })
}

// A wait that can never end ends the run, and the error names rank, action and peer.
func TestStuckRun(t *testing.T) {
	r := twoStages(false)
	r.opt.Deadline = 50 * time.Millisecond
	err := r.try(t, 0)
	if err == nil || !strings.Contains(err.Error(), "rank 1 waits in F of micro-batch 0 for rank 0") {
		t.Errorf("got %v", err)
	}
}

// A slow rank is told of and goes on.
func TestSlowRank(t *testing.T) {
	r := twoStages(true)
	r.opt.Deadline = 20 * time.Millisecond
	told := make(chan string, 10)
	r.opt.Notice = func(s string) { told <- s }
	if err := r.try(t, 150*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if s := <-told; !strings.Contains(s, "rank 0 computes in F of micro-batch 0") {
		t.Errorf("got %q", s)
	}
}

// What a plan prints is not dropped because nobody said where to.
func TestPrintsNeedALog(t *testing.T) {
	f := ir.NewModule("m").NewFunc("f")
	x := f.AddArg("x", ir.Tensor(ir.F32, 1))
	f.MustEmit(ir.Print, []ir.ValueID{x}, nil, ir.Unmarked(ir.Pos{}))
	r := twoStages(true)
	r.plan.Programs[0].Chunks[1].Phases[0].Func = f
	if err := r.openRanks(context.Background()); err == nil || !strings.Contains(err.Error(), "Log") {
		t.Errorf("got %v", err)
	}
}

// A rank that waits for what others report of a step is no rank that computes: the run still ends.
func TestStuckReports(t *testing.T) {
	r := twoStages(true)
	r.opt.Deadline = 50 * time.Millisecond
	r.opt.Open = func(context.Context, *plan.Plan, int, device.Options) (device.Device, error) { return &idle{}, nil }
	if err := r.openRanks(context.Background()); err != nil {
		t.Fatal(err)
	}
	err := r.all(context.Background(), func(k *rank) error {
		if k.stage == 0 {
			return nil // and reports nothing
		}
		k.reports = make([]*reportLink, 2)
		k.reports[0] = &reportLink{End: k.endpoint.End(transport.Queue{ID: 99, From: 0, To: 1, Outstanding: 1})}
		return r.gather(k, report{}, &Step{})
	})
	if err == nil || !strings.Contains(err.Error(), "rank 1 waits in RECV_F of micro-batch 0 for rank 0") {
		t.Errorf("got %v", err)
	}
}
