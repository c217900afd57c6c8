package ptx

import (
	"errors"
	"fmt"
)

// ErrSyntax is matched by every error of Parse.
var ErrSyntax = errors.New("ptx: invalid program")

// ErrUnsupported is matched by errors of Parse that name an instruction or directive this package does not execute.
var ErrUnsupported = errors.New("ptx: unsupported")

// ErrVersion is matched by errors about texts of a PTX version that is newer than any here.
var ErrVersion = errors.New("ptx: unsupported version")

// Error is what Parse returns.
type Error struct {
	Line, Col   int
	Msg         string
	Unsupported bool
	Version     bool
}

func (e *Error) Error() string { return fmt.Sprintf("ptx: %d:%d: %s", e.Line, e.Col, e.Msg) }

// Is matches ErrSyntax and, where they apply, ErrUnsupported and ErrVersion.
func (e *Error) Is(target error) bool {
	return target == ErrSyntax || e.Unsupported && target == ErrUnsupported || e.Version && target == ErrVersion
}

func errAt(p pos, format string, args ...any) error {
	return &Error{Line: p.line, Col: p.col, Msg: fmt.Sprintf(format, args...)}
}

func unsupportedAt(p pos, format string, args ...any) error {
	return &Error{Line: p.line, Col: p.col, Msg: fmt.Sprintf(format, args...), Unsupported: true}
}
