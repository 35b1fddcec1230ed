package data

import (
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// Digests tell contents apart that differ by mistake. They are CRC-32C, which costs little beside reading; 0 stands for nothing.

func newDigest() hash.Hash32 { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }

// Digest is that of arrays, with their names, types and shapes.
func Digest(arrays ...Array) uint32 {
	h := newDigest()
	for i := range arrays {
		a := &arrays[i]
		fmt.Fprintf(h, "%q %s %v\n", a.Name, a.DType, a.Shape)
		h.Write(a.Data)
	}
	return h.Sum32()
}

// Digest is that of what the files of the source hold.
func (d *Dataset) Digest() uint32 {
	var sources []Array
	for i := range d.columns {
		sources = append(sources, d.columns[i].source)
	}
	return Digest(sources...)
}

// Digest is that of the arrays, by the checksums in the file's directory: it reads none of them.
func (z *NPZ) Digest() (uint32, error) {
	h := newDigest()
	for _, t := range z.Tensors {
		f := z.files[t.Name]
		fmt.Fprintf(h, "%q %d %08x\n", f.Name, f.UncompressedSize64, f.CRC32)
	}
	return h.Sum32(), nil
}

// Digest is that of the file. It reads all of it.
func (s *Safetensors) Digest() (uint32, error) {
	h := newDigest()
	if _, err := io.Copy(h, io.NewSectionReader(s.r, 0, s.size)); err != nil {
		return 0, cannotRead(s.path, err)
	}
	return h.Sum32(), nil
}
