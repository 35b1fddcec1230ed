package data

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What differs in a bit, a name or a shape has another digest, whatever it is read from; what is the same has the same one. That of an
// npz file is known without reading its arrays.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	arrays := func(change func(a []Array)) []Array {
		a := []Array{NewFloat32("x", []int{2, 3}, []float32{1, 2, 3, 4, 5, 6}), NewFloat32("y", []int{2}, []float32{0, 0})}
		change(a)
		return a
	}
	contents := [][]Array{
		arrays(func([]Array) {}),
		arrays(func(a []Array) { a[1].Data[7] ^= 1 }),
		arrays(func(a []Array) { a[0].Name = "z" }),
		arrays(func(a []Array) { a[0].Shape = []int{2, 3, 1} }),
		arrays(func(a []Array) { a[1].DType = I32 }),
	}
	digests := func(a []Array) (list [4]uint32) {
		npz, safetensors := filepath.Join(dir, "a.npz"), filepath.Join(dir, "a.safetensors")
		if err := WriteNPZ(npz, a); err != nil {
			t.Fatal(err)
		}
		if err := WriteSafetensors(safetensors, a); err != nil {
			t.Fatal(err)
		}
		z, err := OpenNPZ(npz)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		s, err := OpenSafetensors(safetensors)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		d, err := Open(Spec{Source: "npz", Path: npz, Columns: []string{a[0].Name, a[1].Name}})
		if err != nil {
			t.Fatal(err)
		}
		list[0], list[1] = Digest(a...), d.Digest()
		if list[2], err = z.Digest(); err != nil {
			t.Fatal(err)
		}
		if list[3], err = s.Digest(); err != nil {
			t.Fatal(err)
		}
		return list
	}
	seen := map[[2]uint32]int{}
	for i, a := range contents {
		list := digests(a)
		if again := digests(a); again != list {
			t.Errorf("content %d has the digests %v and %v", i, list, again)
		}
		for kind, x := range list {
			if j, known := seen[[2]uint32{uint32(kind), x}]; known || x == 0 {
				t.Errorf("kind %d: content %d has the digest %d, as content %d", kind, i, x, j)
			}
			seen[[2]uint32{uint32(kind), x}] = i
		}
	}

	// An array that is damaged: reading it would tell.
	path := filepath.Join(dir, "b.npz")
	if err := WriteNPZ(path, contents[0]); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, contents[0][0].Data)
	text[at] ^= 1
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	z, err := OpenNPZ(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	want := digests(contents[0])[2]
	if got, err := z.Digest(); err != nil || got != want {
		t.Errorf("the digest is %d, not %d: %v", got, want, err)
	}
	if _, err := z.Read("x"); err == nil {
		t.Error("a damaged array is read")
	}
}
