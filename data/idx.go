package data

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// ReadIDX reads an IDX file of unsigned bytes, plain or gzip: two zero bytes,
// the type 8, the number of dimensions (1 to 4), the dimensions as big-endian
// 32-bit integers, the elements.
func ReadIDX(path string) (Array, error) {
	f, size, err := openFile(path)
	if err != nil {
		return Array{}, err
	}
	defer f.Close()
	a, err := readIDX(f, size)
	if err != nil {
		return Array{}, badFile(path, "not a usable IDX file: %v", err)
	}
	return a, nil
}

// readIDX reads from r, a file of the given size.
func readIDX(r io.Reader, size int64) (Array, error) {
	buffered := bufio.NewReader(r)
	r = buffered
	limit := size
	if start, err := buffered.Peek(2); err == nil && start[0] == 0x1f && start[1] == 0x8b {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return Array{}, fmt.Errorf("bad gzip header: %w", err)
		}
		r = unzipped
		limit = size * maxExpansion
	}
	var magic [4]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return Array{}, fmt.Errorf("no magic number: %w", err)
	}
	dimensions := int(magic[3])
	if magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || dimensions < 1 || dimensions > 4 {
		return Array{}, fmt.Errorf("magic number is 0x%x, want 0x00000801 to 0x00000804 (unsigned bytes)", magic)
	}
	a := Array{DType: U8}
	for range dimensions {
		var n [4]byte
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return Array{}, fmt.Errorf("ends within its %d dimensions: %w", dimensions, err)
		}
		a.Shape = append(a.Shape, int(binary.BigEndian.Uint32(n[:])))
	}
	want, err := byteSize(a.Shape, 1)
	if err != nil {
		return Array{}, err
	}
	if want > limit {
		return Array{}, fmt.Errorf("announces %d bytes of data, more than a file of %d bytes can hold", want, size)
	}
	a.Data, err = readExactly(r, want)
	return a, err
}

// reason is the part of a file error that does not repeat the path.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
