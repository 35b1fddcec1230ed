package plan

// Axis is a named axis of the grid of ranks. A rank's number is the sum, over the axes, of its place on the axis times Stride;
// ranks whose places differ on one axis only are a group of that axis.
type Axis struct {
	Name   string `yaml:"name" json:"name"`
	Size   int    `yaml:"size" json:"size"`
	Stride int    `yaml:"stride" json:"stride"`
}

// Axes are those of the ranks of a plan, outermost first: the stages; groups of ranks of a stage that have all optimizer states
// together, if they are shared out; the ranks that have a part of the rows each.
func (p *Plan) Axes() []Axis {
	axes := []Axis{{"stage", p.NumStages, p.Degree}}
	if p.ShardSize > 1 {
		return append(axes, Axis{"data", p.Degree / p.ShardSize, p.ShardSize}, Axis{"shard", p.ShardSize, 1})
	}
	return append(axes, Axis{"data", p.Degree, 1})
}
