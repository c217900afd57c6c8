package ptx

import "errors"

// ErrSyntax is wrapped by every error of Parse.
var ErrSyntax = errors.New("ptx: invalid program")

// Parse reads and compiles a PTX text. A trailing NUL, as images in memory have it, is accepted.
func Parse(src []byte) (*Module, error) { return nil, ErrSyntax }

type function struct{}
type variable struct{}
