package diag

import "slices"

// Code identifies a kind of diagnostic. Codes are never reused: a tool may
// rely on them. The first letter is the usual severity, the first two digits
// the part of ppc that reports it.
type Code string

// The codes. [Codes] explains each in a line.
const (
	BadToken        Code = "E0101"
	BadSyntax       Code = "E0102"
	TooDeep         Code = "E0103"
	FileTooLarge    Code = "E0104"
	MisplacedMark   Code = "E0105"
	BadMark         Code = "E0107"
	UnknownName     Code = "E0201"
	DuplicateName   Code = "E0202"
	ReadOnlyName    Code = "E0203"
	UnknownMember   Code = "E0204"
	UnusedMember    Code = "E0205"
	BadImport       Code = "E0206"
	UnknownArgument Code = "E0301"
	MissingArgument Code = "E0302"
	WrongType       Code = "E0303"
	NotWhole        Code = "E0304"
	BadNumber       Code = "E0305"
	BadIndex        Code = "E0306"
	NotCallable     Code = "E0307"
	DroppedResult   Code = "E0308"
	TensorCondition Code = "E0309"
	CellRecursion   Code = "E0310"
	TooManyCells    Code = "E0311"
	BadReturn       Code = "E0312"
	NeedInitializer Code = "E0313"
	NotSupported    Code = "E0314"
	BadShape        Code = "E0401"
	BadOperands     Code = "E0402"
	MixesRows       Code = "E0403"
	BadStage        Code = "E0501"
	UnknownCell     Code = "E0502"
	StagesDiffer    Code = "E0503"
	StageGoesDown   Code = "E0504"
	EmptyStage      Code = "E0505"
	TooManyStages   Code = "E0506"
	BadLayout       Code = "E0507"
	BadSegment      Code = "E0508"
	SegmentOrder    Code = "E0509"
	HiddenByKey     Code = "E0510"
	BufferStages    Code = "E0511"
	UnknownEntry    Code = "E0601"
	MissingEntry    Code = "E0602"
	BadEntry        Code = "E0603"
	BadMicroBatches Code = "E0604"
	BadSetting      Code = "E0605"
	BadBlock        Code = "E0606"
	BadDataset      Code = "E0607"
	BadSchedule     Code = "E0701"
	BadTarget       Code = "E0702"
	BadDevices      Code = "E0703"
	Deadlock        Code = "E0704"
	OutOfMemory     Code = "E0705"
	BadDataFile     Code = "E0801"
	BadValueRange   Code = "E0802"
	BadCheckpoint   Code = "E0803"
	BadBundle       Code = "E0901"
	BundleVersion   Code = "E0902"
	CannotRead      Code = "E1001"
	CannotWrite     Code = "E1002"
	RunFailed       Code = "E1003"
	MissingTool     Code = "E1004"
	BadCommandLine  Code = "E1005"
	NotLaidOut      Code = "E0106"
	CompilerFault   Code = "E1101"
	NotEqual        Code = "E1102"
	DroppedRows     Code = "W0801"
	NoEffect        Code = "W0601"
	UnusedCell      Code = "W0201"
	NoGradient      Code = "W0202"
	OneMicroBatch   Code = "W0701"
	IdleRanks       Code = "W0702"
	UncutParameters Code = "W0703"
)

// Meaning is a row of [Codes].
type Meaning struct {
	Code Code
	Text string
}

var meanings = []Meaning{
	{BadToken, "a character or literal that the language does not have"},
	{BadSyntax, "the text does not follow the grammar"},
	{TooDeep, "brackets or blocks nested too deeply"},
	{FileTooLarge, "a source file above the size limit"},
	{MisplacedMark, "a mark at a place where it has no meaning"},
	{BadMark, "a mark with a value it does not take"},
	{UnknownName, "a name that nothing defines"},
	{DuplicateName, "a name defined twice"},
	{ReadOnlyName, "an assignment to a name that cannot be assigned"},
	{UnknownMember, "a cell has no such member"},
	{UnusedMember, "a cell or entry that nothing uses"},
	{BadImport, "an import that cannot be read or that imports itself"},
	{UnknownArgument, "an argument that the called cell, op or function does not take"},
	{MissingArgument, "a call without an argument it needs"},
	{WrongType, "a value of another type than the place wants"},
	{NotWhole, "a fraction where a whole number is wanted"},
	{BadNumber, "arithmetic without a result, or a number out of range"},
	{BadIndex, "an index outside the value, or list indices with gaps"},
	{NotCallable, "a call of something that is not a cell, op or function"},
	{DroppedResult, "a result that nothing takes"},
	{TensorCondition, "a condition that depends on tensor values"},
	{CellRecursion, "a cell that contains itself"},
	{TooManyCells, "more instances than the compiler accepts"},
	{BadReturn, "a missing, misplaced or mismatched return"},
	{NeedInitializer, "a parameter without an initialiser"},
	{NotSupported, "a part of the language that this version does not build yet"},
	{BadShape, "a shape that does not fit"},
	{BadOperands, "operands that the op refuses"},
	{MixesRows, "an op that mixes rows of a batch that several ranks share"},
	{BadStage, "a stage that is not a small whole number"},
	{UnknownCell, "a key that matches no cell of the network"},
	{StagesDiffer, "the stage count asked for differs from the marks"},
	{StageGoesDown, "a stage lower than one that feeds it"},
	{EmptyStage, "a stage without an op"},
	{TooManyStages, "more stages than there are ops to place"},
	{BadLayout, "a layout that is not in a known notation, or that does not fit the network"},
	{BadSegment, "a segment that is not a small whole number, or without a stage"},
	{SegmentOrder, "a segment lower than one that feeds it, or whose stages go up and down"},
	{HiddenByKey, "cells that are different although the key of @lazy_inline says they are equal"},
	{BufferStages, "a buffer that several stages or chunks read or write"},
	{UnknownEntry, "an entry that a pipeline block does not have"},
	{MissingEntry, "a pipeline block without an entry it needs"},
	{BadEntry, "an entry with a value it does not take"},
	{BadMicroBatches, "a micro-batch number that does not divide the batch"},
	{BadSetting, "a -set that names no constant or gives another type, or another setting out of its range"},
	{BadBlock, "no pipeline block, or several and none named"},
	{BadDataset, "a dataset expression that cannot feed the inputs"},
	{BadSchedule, "an unknown or illegal schedule"},
	{BadTarget, "an unknown target"},
	{BadDevices, "a device count that the stages do not divide"},
	{Deadlock, "a message program that could wait for ever"},
	{OutOfMemory, "a stage that does not fit its device"},
	{BadDataFile, "a data file that is truncated, corrupt or of another kind"},
	{BadValueRange, "a data value that the wanted type cannot hold"},
	{BadCheckpoint, "a checkpoint that is damaged, or that does not fit the program"},
	{BadBundle, "a bundle that is damaged or incomplete"},
	{BundleVersion, "a bundle of another version"},
	{CannotRead, "a file or folder that cannot be read"},
	{CannotWrite, "a file or folder that cannot be written"},
	{RunFailed, "a rank that stopped with an error"},
	{MissingTool, "a program or library that the machine does not have"},
	{BadCommandLine, "a command line that ppc does not understand"},
	{NotLaidOut, "a source file whose layout is not that of ppc fmt"},
	{CompilerFault, "a fault of ppc itself"},
	{NotEqual, "a split program that differs from the unsplit one"},
	{DroppedRows, "rows left out because they do not fill a batch"},
	{NoEffect, "a setting without effect"},
	{UnusedCell, "a cell or parameter that nothing uses"},
	{NoGradient, "a parameter that no gradient reaches"},
	{IdleRanks, "an evaluation whose rows cannot be shared out to the ranks of a stage"},
	{UncutParameters, "parameters that should be shared out and stay whole on every rank"},
	{OneMicroBatch, "several stages with one micro-batch, which work one after the other"},
}

// Codes returns every code with its meaning, in order of the code.
func Codes() []Meaning {
	all := slices.Clone(meanings)
	slices.SortFunc(all, func(a, b Meaning) int {
		if a.Code < b.Code {
			return -1
		}
		return 1
	})
	return all
}
