package data

import (
	"bytes"
	"encoding/binary"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tensorFile puts a header in front of data.
func tensorFile(header string, content []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), content...)
}

func readAll(content []byte) ([]Array, error) {
	s, err := newSafetensors(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, err
	}
	var out []Array
	for _, t := range s.Tensors {
		a, err := s.read(t.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func TestSafetensorsRoundTrip(t *testing.T) {
	arrays := []Array{
		{Name: "flag", DType: U8, Shape: []int{3}, Data: []byte{0, 1, 1}},
		NewFloat32("weight", []int{2, 2}, []float32{1, float32(math.Inf(-1)), 3, 4}),
		NewFloat32("scalar", []int{}, []float32{7}),
		NewFloat32("none", []int{0, 4}, nil),
		{Name: "ids \"x\"\n", DType: I64, Shape: []int{1}, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{Name: "steps", DType: I32, Shape: []int{1}, Data: []byte{1, 2, 3, 4}},
		{Name: "wide", DType: F64, Shape: []int{1}, Data: binary.LittleEndian.AppendUint64(nil, math.Float64bits(1e300))},
	}
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := WriteSafetensors(path, arrays); err != nil {
		t.Fatal(err)
	}
	got, err := readAllSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []Array{arrays[4], arrays[6], arrays[1], arrays[2], arrays[3], arrays[5], arrays[0]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := WriteSafetensors(path, append(arrays, arrays[0])); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
}

// A file as another program writes it: metadata, other types, entries in another order than their data.
func TestSafetensorsOfOthers(t *testing.T) {
	header := `{"__metadata__":{"format":"pt"},"h":{"dtype":"F16","shape":[6],"data_offsets":[4,16]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"c":{"dtype":"BOOL","shape":[2],"data_offsets":[16,18]}}   `
	var content []byte
	for _, x := range []uint16{0x3f80, 0xff80, 0x3c00, 0x8001, 0x03ff, 0x7bff, 0xfc00, 0x7e01} {
		content = binary.LittleEndian.AppendUint16(content, x)
	}
	file := tensorFile(header, append(content, 1, 0))
	got, err := readAll(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []Array{
		NewFloat32("b", []int{2}, []float32{1, float32(math.Inf(-1))}),
		NewFloat32("h", []int{6}, []float32{1, -0x1p-24, 0x3ffp-24, 65504, float32(math.Inf(-1)), math.Float32frombits(0x7fc02000)}),
		{Name: "c", DType: U8, Shape: []int{2}, Data: []byte{1, 0}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Every half is its value by the definition of the format.
func TestHalfToFloat(t *testing.T) {
	for h := range 1 << 16 {
		sign, exponent, fraction := 1-2*float64(h>>15), h>>10&31, float64(h&1023)
		want := sign * math.Ldexp(1+fraction/1024, exponent-15)
		if exponent == 0 {
			want = sign * math.Ldexp(fraction/1024, -14)
		}
		got := halfToFloat(uint16(h))
		switch {
		case exponent == 31 && fraction != 0:
			if got == got {
				t.Fatalf("%#x is %v, want no number", h, got)
			}
		case exponent == 31:
			if !math.IsInf(float64(got), int(sign)) {
				t.Fatalf("%#x is %v", h, got)
			}
		case float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want):
			t.Fatalf("%#x is %v, want %v", h, got, want)
		}
	}
}

func TestBadSafetensors(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return `{"a":{"dtype":"` + dtype + `","shape":` + shape + `,"data_offsets":` + offsets + `}}`
	}
	four := make([]byte, 4)
	tests := []struct {
		name    string
		content []byte
		wrong   string
	}{
		{"empty", nil, "no length"},
		{"short", []byte{1, 0, 0, 0, 0, 0, 0}, "no length"},
		{"false length", tensorFile("{}", nil)[:9], "announces a header of 2 bytes"},
		{"huge length", binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "announces"},
		{"no header", tensorFile("", nil), "no JSON object"},
		{"array", tensorFile("[]", nil), "no JSON object"},
		{"open", tensorFile(`{"a"`, nil), "malformed"},
		{"two objects", tensorFile(`{}{}`, nil), "goes on"},
		{"tail", tensorFile(one("F32", "[1]", "[0,4]"), make([]byte, 5)), "fill 4 bytes of data, the file has 5"},
		{"type", tensorFile(one("F8_E4M3", "[4]", "[0,4]"), four), `element type "F8_E4M3"`},
		{"size", tensorFile(one("F32", "[2]", "[0,4]"), four), "has 4 bytes, wants 8"},
		{"outside", tensorFile(one("F32", "[2]", "[0,8]"), four), "from byte 0 to 8 of 4"},
		{"backward", tensorFile(one("F32", "[0]", "[4,0]"), four), "from byte 4 to 0"},
		{"one offset", tensorFile(one("F32", "[1]", "[0]"), four), "1 data_offsets"},
		{"no shape", tensorFile(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, four), "malformed"},
		{"negative", tensorFile(one("F32", "[-1]", "[0,4]"), four), "malformed"},
		{"overflow", tensorFile(one("F32", "[4611686018427387904,4]", "[0,0]"), nil), "more than the"},
		{"beyond", tensorFile(one("F32", "[18446744073709551615]", "[0,0]"), nil), "has dimension"},
		{"condition", tensorFile(one("BOOL", "[4]", "[0,4]"), []byte{0, 1, 2, 0}), "element 2 is 2"},
		{"metadata", tensorFile(`{"__metadata__":{"a":1}}`, nil), "no object of texts"},
		{"gap", tensorFile(one("F32", "[1]", "[4,8]"), make([]byte, 8)), "begins at byte 4"},
		{"overlap", tensorFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four), "the one before ends at 4"},
		{"twice", tensorFile(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, []byte{0, 0}), "there twice"},
	}
	for _, c := range tests {
		if _, err := readAll(c.content); err == nil || !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
		}
	}
}

// FuzzSafetensors holds that what is read can be written and is the same when it is read again.
func FuzzSafetensors(f *testing.F) {
	f.Add(tensorFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)))
	f.Add(tensorFile(`{"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"BOOL","shape":[],"data_offsets":[4,5]}}`, make([]byte, 5)))
	f.Add(tensorFile("{}", nil))
	f.Fuzz(func(t *testing.T, content []byte) {
		arrays, err := readAll(content)
		if err != nil {
			return
		}
		var tensors []Tensor
		for _, a := range arrays {
			tensors = append(tensors, Tensor{a.Name, a.DType, a.Shape})
		}
		var b bytes.Buffer
		if err := EncodeSafetensors(&b, nil, tensors, func(i int) ([]byte, error) { return arrays[i].Data, nil }); err != nil {
			t.Fatal(err)
		}
		again, err := readAll(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]Array{}
		for _, a := range again {
			byName[a.Name] = a
		}
		for _, a := range arrays {
			if diff := cmp.Diff(a, byName[a.Name]); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// A column of doubles that is used as f32 must fit.
func TestColumnBeyondFloat32(t *testing.T) {
	for value, wrong := range map[float64]bool{-3.4e38: false, math.Inf(1): false, 1e39: true} {
		a := Array{Name: "x", DType: F64, Shape: []int{2}, Data: make([]byte, 16)}
		binary.LittleEndian.PutUint64(a.Data[8:], math.Float64bits(value))
		path := filepath.Join(t.TempDir(), "x.npz")
		if err := WriteNPZ(path, []Array{a}); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Spec{Source: "npz", Path: path, Columns: []string{"x"}, Steps: []Step{{Name: "cast", Text: "f32"}}})
		if (err != nil) != wrong || wrong && !strings.Contains(err.Error(), "element 1 is 1e+39") {
			t.Errorf("%v: %v", value, err)
		}
	}
}

// readAllSafetensors reads all tensors of a file.
func readAllSafetensors(path string) ([]Array, error) {
	s, err := OpenSafetensors(path)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var arrays []Array
	for _, t := range s.Tensors {
		a, err := s.Read(t.Name)
		if err != nil {
			return nil, err
		}
		arrays = append(arrays, a)
	}
	return arrays, nil
}
