package ascend

import (
	_ "embed"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// The part of the host program that is the same for all stages and models.
var (
	//go:embed host/rank.h
	rankHeader []byte
	//go:embed host/rank.cpp
	rankSource []byte
)

// files are the stage's kernels and its host program.
func (s *stageEmitter) files() ([]plan.File, error) {
	var files []plan.File
	for _, k := range s.program.Kernels.Sources {
		files = append(files, plan.File{Path: fmt.Sprintf("stage%d/kernels/%s", s.stage, k.Name), Content: k.Text})
	}
	host, err := s.host()
	if err != nil {
		return nil, err
	}
	return append(files, plan.File{Path: fmt.Sprintf("stage%d/host/program.cpp", s.stage), Content: host}), nil
}

// host emits program.cpp: one C++ function per function of the stage, then the
// tables. The action table stays a file that the program reads.
func (s *stageEmitter) host() ([]byte, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "// The program of stage %d of %s.\n#include \"rank.h\"\n\n", s.stage, s.plan.Name)
	for _, k := range s.program.Kernels.Kernels {
		fmt.Fprintf(&b, "#include \"aclrtlaunch_%s.h\"\n", k.Name)
	}
	b.WriteString("\nnamespace {\n\nusing ppc::Context;\n\n")
	for i, f := range s.funcs {
		if err := s.hostFunction(&b, i, f); err != nil {
			return nil, err
		}
	}
	s.hostUpdate(&b)
	if err := s.hostTables(&b); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}

// functionName is unique by its number and readable by the rest.
func functionName(index int, f *ir.Func) string {
	name := []byte(f.Name)
	for i, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
			name[i] = '_'
		}
	}
	return fmt.Sprintf("F%d_%s", index, name)
}

func (s *stageEmitter) functionIndex(f *ir.Func) int {
	for i, g := range s.funcs {
		if g == f {
			return i
		}
	}
	return -1
}

// hostFunction emits a function. A value is the pointer v<root>.
func (s *stageEmitter) hostFunction(b *strings.Builder, index int, f *ir.Func) error {
	w := newCode()
	root, frame := f.Roots(), &s.memory.Frames[index]
	known := make([]bool, f.NumValues())
	declare := func(v ir.ValueID, format string, args ...any) {
		known[v] = true
		w.line("uint8_t* const v%d = %s;", v, fmt.Sprintf(format, args...))
	}
	for i, a := range f.Args {
		declare(a, "arguments[%d]", i)
	}
	for _, v := range f.ParamReads() {
		ref, err := s.paramRef(f.Value(v).Param)
		if err != nil {
			return err
		}
		p := s.place(ref)
		declare(v, "context.At(%d, %d)", p.area, p.offset)
	}
	for i, r := range f.Results {
		if v := root[r]; !known[v] {
			declare(v, "results[%d]", i)
		}
	}
	list := func(vs []ir.ValueID) string {
		names := make([]string, len(vs))
		for i, v := range vs {
			if r := root[v]; !known[r] {
				declare(r, "frame + %d", frame.Offsets[r])
			}
			names[i] = fmt.Sprintf("v%d", root[v])
		}
		return strings.Join(names, ", ")
	}
	for _, step := range s.program.Functions[index].Steps {
		op := f.Ops[step.Op]
		switch {
		case step.Kernel >= 0:
			operands := make([]ir.ValueID, len(step.Operands))
			for i, v := range step.Operands {
				operands[i] = ir.ValueID(v)
			}
			arguments := list(operands)
			if step.Assign {
				arguments += ", context.assign"
			}
			name := s.program.Kernels.Kernels[step.Kernel].Name
			comment := ""
			if op.Pos.IsValid() {
				comment = fmt.Sprintf("   // %s:%d:%d", path.Base(op.Pos.File), op.Pos.Line, op.Pos.Col)
			}
			w.line("context.Launched(%q, ACLRT_LAUNCH_KERNEL(%s)(%d, context.stream, %s));%s", name, name, step.Blocks, arguments, comment)
		case op.Callee != nil:
			callee := s.functionIndex(op.Callee)
			if callee < 0 {
				return fmt.Errorf("the plan has no frame for %s", op.Callee.Name)
			}
			in, out := list(op.Args), list(op.Results)
			w.open("")
			w.pointers("in", in)
			w.pointers("out", out)
			w.line("%s(context, frame + %d, in, out);", functionName(callee, op.Callee), frame.Calls[op.ID])
			w.close()
		default:
			t := f.TypeOf(op.Args[0])
			if t.DType.Size() != 4 {
				return diag.Errorf(diag.NotSupported, diag.At(op.Pos), "`%s` of %s in a program for the chip; cast to f32 or i32", op.Kind, t.DType)
			}
			w.line("context.Print(%q, %s, {%s}, %t);", op.Attrs.Text("label"), list(op.Args[:1]), joinInts(t.Shape), t.DType == ir.I32)
		}
	}
	fmt.Fprintf(b, "// %s\nvoid %s(const Context& context, uint8_t* frame, uint8_t* const* arguments, uint8_t* const* results)\n{\n", f.Name, functionName(index, f))
	b.WriteString("    (void)context, (void)frame, (void)arguments, (void)results;\n")
	b.WriteString(w.text.String())
	b.WriteString("}\n\n")
	return nil
}

// pointers declares an array; C++ has none of length 0.
func (c *code) pointers(name, list string) {
	if list == "" {
		c.line("uint8_t* const* const %s = nullptr;", name)
		return
	}
	c.line("uint8_t* const %s[] = {%s};", name, list)
}

// hostUpdate emits the optimizer step.
func (s *stageEmitter) hostUpdate(b *strings.Builder) {
	b.WriteString("void Update(const Context& context)\n{\n    (void)context;\n")
	for i, param := range s.plan.Stages[s.stage].Params {
		u := s.program.Updates[i]
		if u.Kernel < 0 {
			continue
		}
		var arguments []string
		for _, ref := range updateOperands(param) {
			p := s.place(ref)
			arguments = append(arguments, fmt.Sprintf("context.At(%d, %d)", p.area, p.offset))
		}
		for _, scalar := range s.plan.Optimizer.Scalars {
			arguments = append(arguments, floatLiteral(scalar.Value))
		}
		name := s.program.Kernels.Kernels[u.Kernel].Name
		fmt.Fprintf(b, "    context.Launched(%q, ACLRT_LAUNCH_KERNEL(%s)(%d, context.stream, %s));   // %s\n", name, name, u.Blocks,
			strings.Join(arguments, ", "), param.Param.Name)
	}
	b.WriteString("}\n\n")
}

// updateOperands are the buffers of an update, in the order of the kernel's parameters.
func updateOperands(param plan.StageParam) []plan.Ref {
	refs := append([]plan.Ref{param.Value}, param.Accumulators...)
	refs = append(refs, param.States...)
	return append(append(refs, param.Value), param.States...)
}

type hostPlace struct{ area, offset, bytes int }

func (p hostPlace) String() string { return fmt.Sprintf("{%d, %d, %d}", p.area, p.offset, p.bytes) }

// place is where an item lies in the current slot of its area; an item that is not there has area -1.
func (s *stageEmitter) place(r plan.Ref) hostPlace {
	if r.Item < 0 {
		return hostPlace{-1, 0, 0}
	}
	item := s.plan.Stages[s.stage].Areas[r.Area].Items[r.Item]
	return hostPlace{r.Area, s.memory.Offsets[r.Area][r.Item], item.Type.Bytes()}
}

func (s *stageEmitter) places(refs []plan.Ref) string {
	out := make([]string, len(refs))
	for i, r := range refs {
		out[i] = s.place(r).String()
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func (s *stageEmitter) paramRef(p *ir.Param) (plan.Ref, error) {
	for _, sp := range s.plan.Stages[s.stage].Params {
		if sp.Param == p {
			return sp.Value, nil
		}
	}
	return plan.Ref{}, fmt.Errorf("stage %d does not keep the parameter %s", s.stage, p.Name)
}

var hcclTypes = map[ir.DType]string{
	ir.F32: "HCCL_DATA_TYPE_FP32", ir.F64: "HCCL_DATA_TYPE_FP64", ir.F16: "HCCL_DATA_TYPE_FP16", ir.BF16: "HCCL_DATA_TYPE_BFP16",
	ir.I32: "HCCL_DATA_TYPE_INT32", ir.I64: "HCCL_DATA_TYPE_INT64", ir.U8: "HCCL_DATA_TYPE_UINT8", ir.Bool: "HCCL_DATA_TYPE_UINT8",
}

// hostTables emits what rank.cpp needs to know of the stage.
func (s *stageEmitter) hostTables(b *strings.Builder) error {
	st := s.plan.Stages[s.stage]
	w := newCode()
	w.depth = 0
	w.open("ppc::Stage MakeStage()")
	w.line("ppc::Stage stage;")
	w.line("stage.index = %d;", s.stage)
	w.line("stage.count = %d;", s.plan.NumStages)
	w.line("stage.scratchBytes = %d;", s.memory.Scratch)
	w.line("stage.update = Update;")
	w.line("stage.seed = %s;", s.place(st.Seed))
	seed := 1.0
	if s.plan.Reduction == "mean" {
		seed = 1 / float64(s.plan.MicroBatches)
	}
	w.line("stage.seedValue = %s;", floatLiteral(seed))
	var areas []string
	for i, a := range st.Areas {
		areas = append(areas, fmt.Sprintf("{%d, %d}", a.Slots, s.memory.SlotBytes[i]))
	}
	w.line("stage.areas = {%s};", strings.Join(areas, ", "))
	for _, p := range st.Params {
		var first []string
		for i := range p.States {
			first = append(first, floatLiteral(s.plan.Optimizer.States[i].Init))
		}
		w.line("stage.parameters.push_back({%q, %s, %s, {%s}});", p.Param.Name, s.place(p.Value), s.places(p.States), strings.Join(first, ", "))
	}
	for i, q := range s.plan.Programs {
		if err := s.hostProgram(w, i, q); err != nil {
			return err
		}
	}
	w.line("return stage;")
	w.close()
	b.WriteString(w.text.String())
	b.WriteString("\n}  // namespace\n\nconst ppc::Stage& ppc::ThisStage()\n{\n    static const Stage stage = MakeStage();\n    return stage;\n}\n")
	return nil
}

func (s *stageEmitter) hostProgram(w *code, index int, q *plan.Program) error {
	w.open("")
	w.line("ppc::Program program;")
	w.line("program.name = %q;", q.Name)
	w.line("program.microBatches = %d;", q.MicroBatches)
	w.line("program.chunks.resize(%d);", len(q.Chunks))
	for c, chunk := range q.Chunks {
		for pass, phase := range chunk.Phases {
			if chunk.Stage != s.stage || phase.Func == nil {
				continue
			}
			f := s.functionIndex(phase.Func)
			if f < 0 {
				return fmt.Errorf("the plan has no frame for %s", phase.Func.Name)
			}
			w.line("program.chunks[%d].phases[%d] = {%s, %s, %s};", c, pass, functionName(f, phase.Func), s.places(phase.Args), s.places(phase.Results))
		}
	}
	for _, m := range q.Messages {
		from, to := q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
		var tensors []string
		if from == s.stage || to == s.stage {
			for _, t := range m.Tensors {
				ref := t.From
				if to == s.stage {
					ref = t.To
				}
				tensors = append(tensors, fmt.Sprintf("{%s, %d, %s}", s.place(ref), t.Type.Elems(), hcclTypes[t.Type.DType]))
			}
		}
		w.line("program.messages.push_back({%d, %d, %d, %d, %t, {%s}});", from, to, m.Window, m.From, m.Backward, strings.Join(tensors, ", "))
	}
	for k, ref := range s.plan.Stages[s.stage].Inputs[index] {
		loaded := ref.Item >= 0 && s.plan.Stages[s.stage].Areas[ref.Area].Lifetime == plan.Loaded
		w.line("program.inputs.push_back({%q, %s, %t});", q.Inputs[k].Name, s.place(ref), loaded)
	}
	value := 0
	for _, r := range q.Results {
		names := []string{r.Name}
		if r.Ratio {
			names = []string{r.Name + ".sum", r.Name + ".count"}
		}
		for _, name := range names {
			if o := q.Outputs[value]; o.Stage == s.stage {
				w.line("program.outputs.push_back({%q, %s});", name, s.place(o.Ref))
			}
			value++
		}
	}
	w.line("stage.programs.push_back(program);")
	w.close()
	return nil
}

func joinInts(ns []int) string {
	out := make([]string, len(ns))
	for i, n := range ns {
		out[i] = strconv.Itoa(n)
	}
	return strings.Join(out, ", ")
}

// buildFiles are the shared sources of the host programs, CMakeLists.txt and run.sh.
func buildFiles(p *plan.Plan, c chip.Chip) []plan.File {
	return []plan.File{
		{Path: "host/rank.h", Content: rankHeader},
		{Path: "host/rank.cpp", Content: rankSource},
		{Path: "CMakeLists.txt", Content: cmakeFile(p, c)},
		{Path: "run.sh", Content: runScript(p)},
	}
}

func cmakeFile(p *plan.Plan, c chip.Chip) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `# Builds one program per stage of %s for Ascend%s.
#   cmake -B build -DASCEND_CANN_PACKAGE_PATH=DIR && cmake --build build
cmake_minimum_required(VERSION 3.16)
project(ppc_program CXX)

set(CMAKE_CXX_STANDARD 17)
set(SOC_VERSION "%s" CACHE STRING "the chip")
set(RUN_MODE "npu" CACHE STRING "npu")
set(ASCEND_CANN_PACKAGE_PATH "$ENV{ASCEND_HOME_PATH}" CACHE PATH "folder of the CANN toolkit")

set(ASCENDC_CMAKE "")
foreach(candidate tools/tikcpp/ascendc_kernel_cmake compiler/tikcpp/ascendc_kernel_cmake ascendc_devkit/tikcpp/samples/cmake)
    if(NOT ASCENDC_CMAKE AND EXISTS "${ASCEND_CANN_PACKAGE_PATH}/${candidate}/ascendc.cmake")
        set(ASCENDC_CMAKE "${ASCEND_CANN_PACKAGE_PATH}/${candidate}/ascendc.cmake")
    endif()
endforeach()
if(NOT ASCENDC_CMAKE)
    message(FATAL_ERROR "ascendc.cmake is not below ASCEND_CANN_PACKAGE_PATH (${ASCEND_CANN_PACKAGE_PATH})")
endif()
include(${ASCENDC_CMAKE})
`, p.Name, strings.ToUpper(c.Name), socVersion(c))
	for stage := range p.Stages {
		fmt.Fprintf(&b, `
file(GLOB stage%[1]d_kernels ${CMAKE_CURRENT_SOURCE_DIR}/stage%[1]d/kernels/*.cpp)
ascendc_library(stage%[1]d_kernels STATIC ${stage%[1]d_kernels})
add_executable(stage%[1]d stage%[1]d/host/program.cpp host/rank.cpp)
target_include_directories(stage%[1]d PRIVATE host ${ASCEND_CANN_PACKAGE_PATH}/include)
target_link_directories(stage%[1]d PRIVATE ${ASCEND_CANN_PACKAGE_PATH}/lib64)
target_link_libraries(stage%[1]d PRIVATE stage%[1]d_kernels ascendcl hccl)
`, stage)
	}
	return []byte(b.String())
}

// socVersion is the name of the chip in the vendor's tools.
func socVersion(c chip.Chip) string {
	if c.Name == "910c" {
		return "Ascend910_9382"
	}
	return "Ascend" + strings.ToUpper(c.Name)
}

func runScript(p *plan.Plan) []byte {
	return fmt.Appendf(nil, `#!/bin/sh
# Runs the %[1]d stages of %[2]s, one process and one device each:
#   run.sh -data DIR -weights DIR [-steps N] [-save DIR] [-program P]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
meet=$(mktemp -d)
ranks=
trap 'kill $ranks 2>/dev/null || true; rm -rf "$meet"' EXIT
for stage in %[3]s; do
    "$here/build/stage$stage" "$here" -meet "$meet" -device "$stage" "$@" &
    ranks="$ranks $!"
done
failed=0
for rank in $ranks; do
    wait "$rank" || { failed=1; kill $ranks 2>/dev/null || true; }
done
exit $failed
`, p.NumStages, p.Name, stageList(p.NumStages))
}

func stageList(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa(i)
	}
	return strings.Join(out, " ")
}
