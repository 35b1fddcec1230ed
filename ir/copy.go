package ir

// Copier rebuilds a function operation by operation: passes that change a function make a new one.
type Copier struct {
	From, To *Func
	// Values gives the new value of an old one; 0 before it is bound.
	Values []ValueID
}

// NewCopier starts a copy of f under a name, with its arguments, parameter reads and scopes.
func NewCopier(f *Func, name string) *Copier {
	c := &Copier{From: f, To: f.Module.NewFunc(name), Values: make([]ValueID, f.NumValues())}
	for _, a := range f.Args {
		c.Values[a] = c.To.AddArg(f.Value(a).Name, f.TypeOf(a))
	}
	for _, v := range f.ParamReads() {
		c.Values[v] = c.To.ReadParam(f.Value(v).Param)
	}
	for _, s := range f.Scopes()[1:] {
		c.To.AddScope(s.Parent, s.Name)
	}
	return c
}

// Mapped returns the new values of old ones.
func (c *Copier) Mapped(vs []ValueID) []ValueID {
	out := make([]ValueID, len(vs))
	for i, v := range vs {
		out[i] = c.Values[v]
	}
	return out
}

// Bind gives the results of an old operation their new values.
func (c *Copier) Bind(op *Op, results []ValueID) {
	for i, r := range op.Results {
		c.Values[r] = results[i]
	}
}

// Finish returns the new function with the results of the old one.
func (c *Copier) Finish() *Func {
	c.To.Return(c.Mapped(c.From.Results)...)
	return c.To
}
