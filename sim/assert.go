package sim

import (
	"errors"
	"fmt"
	"strings"

	"scuda.dev/scuda/sim/ptx"
)

// printAssert writes what a driver writes when an assertion of a kernel fails.
func (g *GPU) printAssert(err error) {
	var f *ptx.Fault
	if !errors.As(err, &f) || f.Kind != ptx.Assert {
		return
	}
	where, what, _ := strings.Cut(f.Message, ": assertion ")
	fmt.Fprintf(g.cfg.Stderr, "%s: block: [%d,%d,%d], thread: [%d,%d,%d] Assertion %s.\n", where,
		f.Block[0], f.Block[1], f.Block[2], f.Thread[0], f.Thread[1], f.Thread[2], what)
}
