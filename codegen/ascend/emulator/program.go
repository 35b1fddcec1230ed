package emulator

// A StageProgram is what the code generator made of one stage of a plan: its
// kernels, and for every function the steps that run it. The emitted host program and a device
// that runs the emulator walk the same steps.
type StageProgram struct {
	Kernels   KernelSet
	Functions []Function
	// Updates run the optimizer, one per parameter of the stage; Kernel is -1
	// for parameters that are not trained. The operands are the parameter, its accumulators in
	// program order, its states; then the parameter and its states again, as
	// results; the optimizer's scalars follow by value.
	Updates []Update
}

// Function is the steps of a function of the plan's module.
type Function struct {
	Name  string
	Steps []Step
}

// Step is a launch, a call, or an operation with an effect (print and its kin).
type Step struct {
	// Kernel is the index of the launched kernel, -1 for calls and effects.
	Kernel int
	Blocks int
	// Operands are the kernel's buffers, as values of the function. A value that
	// is a view or is computed in place has the buffer of its root.
	Operands []int
	// Assign: the kernel takes a last scalar that is 1 in the first
	// micro-batch, where an accumulator is set, and 0 after it.
	Assign bool
	// Op is the place of the call or effect in the function's operations; for a launch,
	// that of its last operation.
	Op int
}

// Update is the optimizer step of one parameter.
type Update struct {
	Kernel int
	Blocks int
}
