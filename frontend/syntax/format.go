package syntax

import "github.com/ppc-lang/ppc/diag"

func Format(name string, src []byte) ([]byte, diag.List) { return src, nil }
