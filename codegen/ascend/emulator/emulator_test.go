package emulator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cache is shared by the tests: the server's own sources are compiled once.
var cache string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if cache, err = os.MkdirTemp("", "emulator-test-*"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(cache)
		return m.Run()
	}())
}

// needCompiler skips where g++ is missing, except in CI, where that is a failure.
func needCompiler(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("g++ is missing")
		}
		t.Skip("g++ is missing")
	}
}

// probe is a hand-written kernel: x and y are its two buffers of 4 KiB each.
type probe struct {
	name   string
	blocks int
	cube   bool
	body   string
	call   string // of the expected fault; empty when the kernel is right
	want   string // part of the expected text
}

const preamble = `#include "kernel_operator.h"
#include "lib/matmul_intf.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void %s(GM_ADDR x, GM_ADDR y) {
    KERNEL_TASK_TYPE_DEFAULT(%s);
    TPipe pipe;
    GlobalTensor<float> in, out;
    in.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x), 1024);
    out.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y), 1024);
    TQue<TPosition::VECIN, 1> source;
    TQue<TPosition::VECOUT, 1> target;
    TBuf<TPosition::VECCALC> scratch;
%s
}
`

// load and store move 64 floats of this block through the queues.
const (
	setup = `
    pipe.InitBuffer(source, 2, 256);
    pipe.InitBuffer(target, 2, 256);
    pipe.InitBuffer(scratch, 512);
    const int64_t at = GetBlockIdx() * 64;
`
	load = `
    { LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in[at], 64); source.EnQue(t); }
`
	store = `
    { LocalTensor<float> t = target.DeQue<float>(); DataCopy(out[at], t, 64); target.FreeTensor(t); }
`
	square = setup + load + `
    LocalTensor<float> a = source.DeQue<float>();
    LocalTensor<float> b = target.AllocTensor<float>();
    Mul(b, a, a, 64);
    source.FreeTensor(a);
    target.EnQue(b);
` + store
)

const cubeTiling = `
    TCubeTiling tiling;
    tiling.usedCoreNum = GetBlockNum(); tiling.M = 32; tiling.N = 32; tiling.Ka = 32; tiling.Kb = 32;
    tiling.singleCoreM = 32; tiling.singleCoreN = 32; tiling.singleCoreK = 32;
    tiling.baseM = 32; tiling.baseN = 32; tiling.baseK = 32;
    tiling.depthA1 = 1; tiling.depthB1 = 1; tiling.stepM = 1; tiling.stepN = 1; tiling.stepKa = 1; tiling.stepKb = 1;
    tiling.dbL0A = 2; tiling.dbL0B = 2; tiling.dbL0C = 1;
    using Row = MatmulType<TPosition::GM, CubeFormat::ND, float>;
    Matmul<Row, Row, Row> product;
`

var probes = []probe{
	{name: "square", blocks: 16, body: square},
	{name: "flags_order_scratch", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>();
    LocalTensor<float> s = scratch.Get<float>();
    Muls(s, a, 2.0f, 64);
    PipeBarrier<PIPE_V>();
    Adds(s, s, 1.0f, 64);
    source.FreeTensor(a);
    const event_t id = static_cast<event_t>(pipe.FetchEventID(HardEvent::V_MTE3));
    SetFlag<HardEvent::V_MTE3>(id);
    WaitFlag<HardEvent::V_MTE3>(id);
    DataCopy(out, s, 64);`},
	{name: "product", blocks: 1, cube: true, body: cubeTiling + `
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(in); product.SetTensorB(in); product.IterateAll(out); product.IterateAll(out, 1); product.End();`},
	{name: "synchronised_blocks", blocks: 4, body: square + `
    SyncAll();
    { LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, out[(at + 64) % 256], 64); source.EnQue(t); source.FreeTensor(source.DeQue<float>()); }`},
	{name: "atomic_blocks", blocks: 8, body: setup + `
    LocalTensor<float> b = target.AllocTensor<float>();
    Duplicate(b, 1.0f, 64);
    target.EnQue(b); b = target.DeQue<float>();
    SetAtomicAdd<float>(); DataCopy(out, b, 64); SetAtomicNone();
    target.FreeTensor(b);`},

	{name: "copy_unaligned", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in, 7);`,
		call: "DataCopy", want: "28 bytes is not a multiple of 32"},
	{name: "copy_unaligned_address", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t[4], in, 8);`,
		call: "DataCopy", want: "starts at byte 16 of its buffer, which is not a multiple of 32"},
	{name: "copy_oversized", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in, 128);`,
		call: "DataCopy", want: "512 bytes are beyond the local tensor of 256 bytes"},
	{name: "copy_nothing", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in, 0);`,
		call: "DataCopy", want: "a move of 0 bytes"},
	{name: "pad_oversized", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>();
    DataCopyPad(t, in, DataCopyExtParams(9, 4, 0, 0, 0), DataCopyPadExtParams<float>(true, 0, 7, 0.0f));`,
		call: "DataCopyPad", want: "beyond the local tensor"},
	{name: "pad_too_wide", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>();
    DataCopyPad(t, in, DataCopyExtParams(1, 4, 0, 0, 0), DataCopyPadExtParams<float>(true, 0, 9, 0.0f));`,
		call: "DataCopyPad", want: "more than 32 bytes"},
	{name: "pad_part_of_element", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>();
    DataCopyPad(t, in, DataCopyExtParams(1, 6, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 0, 0.0f));`,
		call: "DataCopyPad", want: "blockLen 6 is not a multiple of the element size 4"},
	{name: "unified_overflow", blocks: 2, body: `
    pipe.InitBuffer(source, 2, 94088);`,
		call: "InitBuffer", want: "unified buffer overflows: 94112 bytes are in use, 94112 more are asked for, 188160 exist"},
	{name: "no_buffers", blocks: 1, body: `
    pipe.InitBuffer(source, 0, 32);`,
		call: "InitBuffer", want: "a queue of 0 buffers"},
	{name: "init_twice", blocks: 1, body: `
    pipe.InitBuffer(source, 1, 32); pipe.InitBuffer(source, 1, 32);`,
		call: "InitBuffer", want: "initialised before"},
	{name: "too_many_buffers", blocks: 1, body: `
    pipe.InitBuffer(source, 65, 32);`,
		call: "InitBuffer", want: "more than 64 buffers"},
	{name: "alloc_beyond", blocks: 1, body: setup + `
    source.AllocTensor<float>(); source.AllocTensor<float>(); source.AllocTensor<float>();`,
		call: "AllocTensor", want: "all 2 buffers of the queue are in use"},
	{name: "too_many_live", blocks: 1, body: `
    pipe.InitBuffer(source, 9, 32);
    for (int i = 0; i < 9; i++) source.AllocTensor<float>();`,
		call: "AllocTensor", want: "more than 8 tensors of position VECIN at once"},
	{name: "deque_empty", blocks: 1, body: setup + `
    source.DeQue<float>();`,
		call: "DeQue", want: "nothing is in the queue"},
	{name: "enque_beyond_depth", blocks: 1, body: setup + load + load,
		call: "EnQue", want: "the queue of depth 1 is full"},
	{name: "enque_foreign", blocks: 1, body: setup + `
    target.EnQue(source.AllocTensor<float>());`,
		call: "EnQue", want: "not of this queue"},
	{name: "free_twice", blocks: 1, body: setup + load + `
    LocalTensor<float> t = source.DeQue<float>(); source.FreeTensor(t); source.FreeTensor(t);`,
		call: "FreeTensor", want: "freed before"},
	{name: "not_freed", blocks: 1, body: setup + load + `
    source.DeQue<float>();`,
		call: "the end of the kernel", want: "a tensor of position VECIN was not freed"},
	{name: "left_in_queue", blocks: 1, body: setup + load,
		call: "the end of the kernel", want: "left in its queue"},
	{name: "use_after_free", blocks: 1, body: setup + load + `
    LocalTensor<float> t = source.DeQue<float>(); source.FreeTensor(t);
    Muls(scratch.Get<float>(), t, 2.0f, 64);`,
		call: "Muls", want: "freed before this use"},
	{name: "global_out_of_range", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in[1000], 32);`,
		call: "DataCopy", want: "bytes 0 to 128 are outside the global tensor of 96 bytes"},
	{name: "global_declared_too_long", blocks: 1, body: `
    in.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x), 1025);`,
		call: "SetGlobalBuffer", want: "4100 bytes are declared, the kernel's argument has 4096"},
	{name: "global_without_extent", blocks: 1, body: setup + `
    in.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x));
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in, 8);`,
		call: "DataCopy", want: "no extent"},
	{name: "compute_before_queue", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in, 64);
    Muls(scratch.Get<float>(), t, 2.0f, 64);`,
		call: "Muls", want: "nothing makes it wait for pipe MTE2"},
	{name: "store_before_queue", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>();
    LocalTensor<float> b = target.AllocTensor<float>(); Mul(b, a, a, 64); DataCopy(out, b, 64);`,
		call: "DataCopy", want: "nothing makes it wait for pipe V"},
	{name: "reload_without_wait", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>();
    Muls(scratch.Get<float>(), a, 2.0f, 64); DataCopy(a, in, 64);`,
		call: "DataCopy", want: "nothing makes it wait for pipe V, which reads"},
	{name: "no_vector_barrier", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); LocalTensor<float> s = scratch.Get<float>();
    Muls(s, a, 2.0f, 64); Adds(s, s, 1.0f, 64);`,
		call: "Adds", want: "PipeBarrier<PIPE_V> is missing"},
	{name: "scalar_read_without_wait", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); LocalTensor<float> s = scratch.Get<float>();
    Muls(s, a, 2.0f, 64); s.GetValue(0);`,
		call: "LocalTensor::GetValue", want: "nothing makes it wait for pipe V"},
	{name: "read_own_store", blocks: 1, body: square + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, out, 64);`,
		call: "DataCopy", want: "reads global memory"},
	{name: "wait_never_set", blocks: 1, body: `
    WaitFlag<HardEvent::V_S>(0);`,
		call: "WaitFlag", want: "never set: the core would hang"},
	{name: "set_never_waited", blocks: 1, body: `
    SetFlag<HardEvent::V_S>(0);`,
		call: "the end of the kernel", want: "was set and nothing waited"},
	{name: "set_twice", blocks: 1, body: `
    SetFlag<HardEvent::V_S>(1); SetFlag<HardEvent::V_S>(1);`,
		call: "SetFlag", want: "set already"},
	{name: "event_id", blocks: 1, body: `
    SetFlag<HardEvent::V_S>(8);`,
		call: "SetFlag", want: "event id 8 of V_S is not in 0..7"},
	{name: "count_beyond", blocks: 3, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); LocalTensor<float> b = target.AllocTensor<float>();
    Mul(b, a, a, 65);`,
		call: "Mul", want: "260 bytes are beyond the local tensor of 256 bytes"},
	{name: "count_zero", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); Relu(scratch.Get<float>(), a, 0);`,
		call: "Relu", want: "a count of 0"},
	{name: "operand_unaligned", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); Relu(scratch.Get<float>(), a[1], 8);`,
		call: "Relu", want: "not a multiple of 32"},
	{name: "partial_overlap", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); Relu(a[8], a, 16);`,
		call: "Relu", want: "overlap without being the same"},
	{name: "wrong_type", blocks: 1, body: `
    pipe.InitBuffer(scratch, 512);
    LocalTensor<int32_t> s = scratch.Get<int32_t>(); Duplicate(s, 1, 8); PipeBarrier<PIPE_V>(); Div(s, s, s, 8);`,
		call: "Div", want: "no form of this call for int32_t"},
	{name: "mask_too_wide", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>();
    Add(a, a, a, 65, 1, BinaryRepeatParams(1, 1, 1, 8, 8, 8));`,
		call: "Add", want: "mask 65 is not in 1..64"},
	{name: "work_too_small", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>(); LocalTensor<float> s = scratch.Get<float>();
    ReduceMax(s, a, scratch.GetWithOffset<float>(1, 64), 64);`,
		call: "ReduceMax", want: "the work tensor has 4 bytes"},
	{name: "compare_length", blocks: 1, body: setup + load + `
    LocalTensor<float> a = source.DeQue<float>();
    CompareScalar(scratch.Get<uint8_t>(), a, 0.0f, CMPMODE::GT, 60);`,
		call: "CompareScalar", want: "240 bytes is not a positive multiple of 256"},
	{name: "uninitialised", blocks: 1, body: setup + `
    LocalTensor<float> s = scratch.Get<float>(); Muls(s, s, 2.0f, 64);`,
		call: "Muls", want: "uninitialised unified buffer at element 0"},
	{name: "pad_not_filled", blocks: 1, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>();
    DataCopyPad(t, in, DataCopyExtParams(1, 20, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 3, 0.0f));
    source.EnQue(t); t = source.DeQue<float>(); Muls(t, t, 2.0f, 8);`,
		call: "Muls", want: "uninitialised unified buffer at element 5"},
	{name: "blocks_overlap", blocks: 4, body: `
    pipe.InitBuffer(target, 1, 256);
    LocalTensor<float> b = target.AllocTensor<float>(); Duplicate(b, 1.0f, 64);
    target.EnQue(b); b = target.DeQue<float>(); DataCopy(out[GetBlockIdx() * 56], b, 64); target.FreeTensor(b);`,
		call: "DataCopy", want: "it writes global memory that block 1 writes in DataCopy"},
	{name: "blocks_read_each_other", blocks: 4, body: square + `
    PipeBarrier<PIPE_ALL>();
    { LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, out[(at + 64) % 256], 64); source.EnQue(t); source.FreeTensor(source.DeQue<float>()); }`,
		call: "DataCopy", want: "reads in DataCopy, with no SyncAll"},
	{name: "sync_too_many_blocks", blocks: 41, body: `
    SyncAll();`,
		call: "SyncAll", want: "41 blocks cannot all be resident on 40 cores"},
	{name: "sync_not_reached", blocks: 4, body: `
    if (GetBlockIdx() != 2) SyncAll();`,
		call: "SyncAll", want: "1 of 4 blocks ended without reaching it"},
	{name: "atomic_left_on", blocks: 1, body: `
    SetAtomicAdd<float>();`,
		call: "the end of the kernel", want: "atomic mode is still on"},
	{name: "scalar_write_unpublished", blocks: 1, body: `
    out.SetValue(0, 1.0f);`,
		call: "the end of the kernel", want: "not published"},
	{name: "second_pipe", blocks: 1, body: `
    TPipe other;`,
		call: "TPipe", want: "a second TPipe"},
	{name: "vector_call_on_cube", blocks: 1, cube: true, body: setup + `
    LocalTensor<float> t = source.AllocTensor<float>(); DataCopy(t, in, 64);`,
		call: "DataCopy", want: "a vector core's call in a kernel for cube cores"},
	{name: "cube_l0a", blocks: 1, cube: true, body: cubeTiling + `
    tiling.baseM = 128; tiling.baseK = 128;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);`,
		call: "REGIST_MATMUL_OBJ", want: "131072 bytes of L0A, which has 65536"},
	{name: "cube_l0b", blocks: 1, cube: true, body: cubeTiling + `
    tiling.baseN = 512;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);`,
		call: "REGIST_MATMUL_OBJ", want: "131072 bytes of L0B, which has 65536"},
	{name: "cube_l0c", blocks: 1, cube: true, body: cubeTiling + `
    tiling.baseM = 256; tiling.baseN = 256; tiling.baseK = 16;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);`,
		call: "REGIST_MATMUL_OBJ", want: "262144 bytes of L0C, which has 131072"},
	{name: "cube_l1", blocks: 1, cube: true, body: cubeTiling + `
    tiling.depthA1 = 100; tiling.depthB1 = 100;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);`,
		call: "REGIST_MATMUL_OBJ", want: "of L1, which has 524288"},
	{name: "cube_base", blocks: 1, cube: true, body: cubeTiling + `
    tiling.baseM = 24;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);`,
		call: "REGIST_MATMUL_OBJ", want: "not a multiple of 16 x 16 x 8"},
	{name: "cube_beyond", blocks: 1, cube: true, body: cubeTiling + `
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(in[32]); product.SetTensorB(in); product.IterateAll(out); product.End();`,
		call: "Matmul::IterateAll", want: "outside the global tensor"},
	{name: "cube_transposed", blocks: 1, cube: true, body: cubeTiling + `
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(in, true);`,
		call: "Matmul::SetTensorA", want: "declared without transposition"},
	{name: "cube_blocks_overlap", blocks: 2, cube: true, body: cubeTiling + `
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(in); product.SetTensorB(in); product.IterateAll(out); product.End();`,
		call: "Matmul::IterateAll", want: "it writes global memory that block 1 writes"},
}

// startProbes builds all probes into one server.
func startProbes(t *testing.T) *Server {
	t.Helper()
	needCompiler(t)
	set := KernelSet{VectorCores: 40, CubeCores: 20}
	var all strings.Builder
	for _, p := range probes {
		kind := "KERNEL_TYPE_AIV_ONLY"
		if p.cube {
			kind = "KERNEL_TYPE_AIC_ONLY"
		}
		fmt.Fprintf(&all, preamble, p.name, kind, p.body)
		set.Kernels = append(set.Kernels, Kernel{Name: p.name, Parameters: []ParameterKind{Buffer, Buffer}})
	}
	set.Sources = []Source{{"probes.cpp", []byte(all.String())}}
	exe, err := Build(context.Background(), set, cache)
	if err != nil {
		t.Fatal(err)
	}
	server, err := Start(context.Background(), exe, 8192)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func fill(arena []byte) {
	for i := range 1024 {
		binary.LittleEndian.PutUint32(arena[4*i:], math.Float32bits(float32(i%7)))
		binary.LittleEndian.PutUint32(arena[4096+4*i:], 0)
	}
}

func result(arena []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(arena[4096+4*i:]))
}

func TestRefusals(t *testing.T) {
	server := startProbes(t)
	for index, p := range probes {
		t.Run(p.name, func(t *testing.T) {
			fill(server.Arena())
			err := server.Launch(index, p.blocks, []Arg{BufferArg(0, 4096), BufferArg(4096, 4096)})
			if p.call == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var fault *Fault
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a fault", err)
			}
			if fault.Kernel != p.name || fault.Call != p.call || !strings.Contains(fault.Message, p.want) {
				t.Errorf("got %q\nwant kernel %s, call %s, text with %q", err, p.name, p.call, p.want)
			}
			if fault.Block < 0 || fault.Block >= p.blocks {
				t.Errorf("block %d of %d", fault.Block, p.blocks)
			}
		})
	}
}

func TestResults(t *testing.T) {
	server := startProbes(t)
	run := func(name string, want func(i int) float32) {
		t.Helper()
		for index, p := range probes {
			if p.name != name {
				continue
			}
			fill(server.Arena())
			if err := server.Launch(index, p.blocks, []Arg{BufferArg(0, 4096), BufferArg(4096, 4096)}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 1024 {
			if got := result(server.Arena(), i); got != want(i) {
				t.Fatalf("%s: element %d is %v, want %v", name, i, got, want(i))
			}
		}
	}
	run("square", func(i int) float32 { return float32((i % 7) * (i % 7)) })
	run("flags_order_scratch", func(i int) float32 {
		if i < 64 {
			return float32(2*(i%7) + 1)
		}
		return 0
	})
	run("atomic_blocks", func(i int) float32 {
		if i < 64 {
			return 8
		}
		return 0
	})
	run("product", func(i int) float32 {
		sum := 0
		for k := range 32 {
			sum += ((i/32*32 + k) % 7) * ((k*32 + i%32) % 7)
		}
		return float32(2 * sum)
	})
}

func TestLaunchArguments(t *testing.T) {
	server := startProbes(t)
	x, y := BufferArg(0, 4096), BufferArg(4096, 4096)
	for _, c := range []struct {
		kernel, blocks int
		args           []Arg
		want           string
	}{
		{len(probes), 1, []Arg{x, y}, "no kernel of this number"},
		{-1, 1, []Arg{x, y}, "no kernel of this number"},
		{0, 0, []Arg{x, y}, "not in 1..65535"},
		{0, 65536, []Arg{x, y}, "not in 1..65535"},
		{0, 1, []Arg{x}, "differs from the kernel's parameters"},
		{0, 1, []Arg{x, BufferArg(4096, 4097)}, "outside the arena"},
		{0, 1, []Arg{x, BufferArg(-4, 4)}, "outside the arena"},
		{0, 16, []Arg{BufferArg(0, 4092), y}, "4096 bytes are declared, the kernel's argument has 4092"},
	} {
		err := server.Launch(c.kernel, c.blocks, c.args)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("kernel %d, %d blocks: got %v, want %q", c.kernel, c.blocks, err, c.want)
		}
	}
}

func TestScalarArguments(t *testing.T) {
	needCompiler(t)
	source := `#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void scaled(GM_ADDR y, float factor, int32_t count) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GlobalTensor<float> out;
    out.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y), 4);
    out.SetValue(0, factor * count);
    DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(out);
}
`
	set := KernelSet{Sources: []Source{{"scaled.cpp", []byte(source)}}, Kernels: []Kernel{{"scaled", []ParameterKind{Buffer, Float32, Int32}}}}
	exe, err := Build(context.Background(), set, cache)
	if err != nil {
		t.Fatal(err)
	}
	server, err := Start(context.Background(), exe, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.Launch(0, 1, []Arg{BufferArg(0, 16), Float32Arg(-1.5), Int32Arg(-3)}); err != nil {
		t.Fatal(err)
	}
	if got := math.Float32frombits(binary.LittleEndian.Uint32(server.Arena())); got != 4.5 {
		t.Errorf("got %v, want 4.5", got)
	}
}

func TestBuildReportsCompilerErrors(t *testing.T) {
	needCompiler(t)
	set := KernelSet{Sources: []Source{{"wrong.cpp", []byte("#include \"kernel_operator.h\"\nnonsense\n")}}, Kernels: []Kernel{{"wrong", nil}}}
	_, err := Build(context.Background(), set, cache)
	if err == nil || !strings.Contains(err.Error(), "wrong.cpp") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
}

// What a build keeps is found again by all that went into it: a change of anything gives another server, no change compiles nothing.
func TestBuildKeys(t *testing.T) {
	tools, kept := t.TempDir(), t.TempDir()
	compiler := func(version string) {
		script := "#!/bin/sh\nif [ $1 = -dumpfullversion ]; then echo " + version + "; exit; fi\n" +
			"echo >>\"$0.calls\"\nfor last; do :; done\necho \"$@\" >\"$last\"\n"
		if err := os.WriteFile(filepath.Join(tools, "g++"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	compiler("12.2.0")
	set := func() KernelSet {
		return KernelSet{
			Sources:     []Source{{"a.cpp", []byte("a")}, {"b.cpp", []byte("b")}},
			Kernels:     []Kernel{{"a", []ParameterKind{Buffer}}, {"b", []ParameterKind{Float32}}},
			VectorCores: 40, CubeCores: 20,
		}
	}
	servers := map[string]string{}
	for _, change := range []struct {
		name string
		do   func(s *KernelSet)
	}{
		{"nothing", func(*KernelSet) {}},
		{"a source", func(s *KernelSet) { s.Sources[1].Text = []byte("c") }},
		{"the end of a source", func(s *KernelSet) { s.Sources[0].Text, s.Sources[1].Text = []byte("ab"), nil }},
		{"a source less", func(s *KernelSet) { s.Sources = s.Sources[:1] }},
		{"the name of a kernel", func(s *KernelSet) { s.Kernels[0].Name = "c" }},
		{"the order of kernels", func(s *KernelSet) { s.Kernels[0], s.Kernels[1] = s.Kernels[1], s.Kernels[0] }},
		{"the kind of a parameter", func(s *KernelSet) { s.Kernels[1].Parameters[0] = Int32 }},
		{"the number of parameters", func(s *KernelSet) { s.Kernels[0].Parameters = append(s.Kernels[0].Parameters, Buffer) }},
		{"the vector cores", func(s *KernelSet) { s.VectorCores = 48 }},
		{"the cube cores", func(s *KernelSet) { s.CubeCores = 24 }},
		{"the compiler", func(*KernelSet) { compiler("12.2.1") }},
	} {
		s := set()
		change.do(&s)
		calls := func() int64 {
			st, err := os.Stat(filepath.Join(tools, "g++.calls"))
			if err != nil {
				return 0
			}
			return st.Size()
		}
		server, err := Build(context.Background(), s, kept)
		if err != nil {
			t.Fatal(change.name, err)
		}
		if old, ok := servers[server]; ok {
			t.Errorf("a change of %s gives the server of a change of %s", change.name, old)
		}
		servers[server] = change.name
		before := calls()
		if again, err := Build(context.Background(), s, kept); err != nil || again != server || calls() != before {
			t.Errorf("%s: the same again gives %s, not %s, with %d calls of the compiler: %v", change.name, again, server, calls()-before, err)
		}
	}
}

func TestBuildWithoutCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Build(context.Background(), KernelSet{}, t.TempDir())
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "g++") {
		t.Errorf("got %v", err)
	}
}

func TestCrashIsAnError(t *testing.T) {
	needCompiler(t)
	source := `#include <cstdio>
#include <cstdlib>
#include "kernel_operator.h"
extern "C" void crash() { std::fputs("last words\n", stderr); std::abort(); }
`
	exe, err := Build(context.Background(), KernelSet{Sources: []Source{{"crash.cpp", []byte(source)}}, Kernels: []Kernel{{"crash", nil}}}, cache)
	if err != nil {
		t.Fatal(err)
	}
	server, err := Start(context.Background(), exe, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for range 2 {
		err := server.Launch(0, 1, nil)
		if err == nil || !strings.Contains(err.Error(), "the kernel server ended in kernel 0") || !strings.Contains(err.Error(), "last words") {
			t.Errorf("got %v", err)
		}
	}
}
