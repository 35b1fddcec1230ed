//go:build !unix

package emulator

import (
	"errors"
	"os"
)

func mapArena(int) (*os.File, []byte, error) {
	return nil, nil, errors.New("shared arenas need a Unix system")
}

func unmapArena([]byte) error { return nil }
