package frontend

import (
	"bytes"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
)

// Trees keeps what files have been parsed to, for further calls with the same text: elaboration changes no tree. The zero value is
// empty. It is not for calls at the same time.
type Trees struct {
	files map[string]tree
}

type tree struct {
	src  []byte
	file *syntax.File
}

// parse parses a file unless that has been done. What has errors, which an interrupt gives too, is not kept.
func (t *Trees) parse(done <-chan struct{}, name string, src []byte) (*syntax.File, diag.List) {
	if t == nil {
		return syntax.ParseUntil(done, name, src)
	}
	if known, ok := t.files[name]; ok && bytes.Equal(known.src, src) {
		return known.file, nil
	}
	f, list := syntax.ParseUntil(done, name, src)
	if len(list) == 0 {
		if t.files == nil {
			t.files = map[string]tree{}
		}
		t.files[name] = tree{bytes.Clone(src), f}
	}
	return f, list
}
