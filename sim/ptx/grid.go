package ptx

import (
	"context"
	"errors"
	"io"
)

// ErrLaunch is what a Grid that cannot be run as described returns, wrapped with the cause.
var ErrLaunch = errors.New("ptx: invalid launch")

// Grid is one launch of a kernel.
type Grid struct {
	Kernel            *Entry
	GridDim, BlockDim [3]uint32
	ClusterDim        [3]uint32 // zero: none
	SharedBytes       uint32    // dynamic shared memory
	Params            []byte    // laid out as Kernel.Params says
	Mem               Memory
	Globals           map[string]uint64 // addresses of the module's Globals
	// Cooperative keeps all blocks resident, so that they may wait for one another.
	Cooperative bool
	// Stdout receives what vprintf prints, one call a line of output at least; nil discards it.
	Stdout io.Writer
	// MaxInstructions bounds the warp instructions of the whole grid, 0 is no bound.
	MaxInstructions uint64
	// Workers is the number of goroutines, 0 is GOMAXPROCS.
	Workers int
	// ClockKHz is the rate of %clock and %clock64, 0 is 1 GHz.
	ClockKHz uint64
	// SMs is what %nsmid says and %smid counts to, 0 is 1.
	SMs uint32
}

// Run executes the grid and returns when all its blocks have ended: nil, a *Fault, an error that wraps ErrLaunch, or
// ctx's error where that ended it.
func (g *Grid) Run(ctx context.Context) error {
	return ErrLaunch
}
