package executor

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// diary notes what the driver is asked for. Launches with a grid of 13 fail.
type diary struct {
	quick
	mu    *sync.Mutex
	lines *[]string
}

func (d diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*d.lines = append(*d.lines, fmt.Sprintf(format, args...))
}

func (d diary) CuLaunchKernel(
	f cuda.CUfunction, gx, gy, gz, bx, by, bz, shared uint32, s cuda.CUstream, params, extra unsafe.Pointer,
) cuda.CUresult {
	first := **(**uint32)(params)
	d.note("launch %d with %d", gx, first)
	if gx == 13 {
		return cuda.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
	}
	return cuda.CUDA_SUCCESS
}

func (d diary) CuEventRecord(cuda.CUevent, cuda.CUstream) cuda.CUresult {
	d.note("record")
	return 0
}

func (d diary) CuCtxSetCurrent(c cuda.CUcontext) cuda.CUresult {
	d.note("context %d", c)
	return 0
}

// batch is a diary whose launches come in lists.
type batch struct{ diary }

func (b batch) LaunchAll(list []cuda.Launch) {
	b.note("list of %d", len(list))
	for i := range list {
		l := &list[i]
		l.Result = b.CuLaunchKernel(l.Function, l.Grid[0], l.Grid[1], l.Grid[2], l.Block[0], l.Block[1], l.Block[2], l.Shared,
			l.Stream, driverPointer(l.Params), nil)
	}
}

// Launches that go to the driver together keep their place among the other commands, and the first failure is the one
// that is told.
func TestLaunchesKeepTheirPlace(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprint("together ", together), func(t *testing.T) {
			d := diary{mu: new(sync.Mutex), lines: new([]string)}
			c := connect(t, func(cfg *Config) {
				if cfg.GPU = d; together {
					cfg.GPU = batch{d}
				}
			})
			e := c.event()
			grids := []uint32{1, 13, 3, 4, 5, 6}
			launches := quickLaunches(c, len(grids), func(i int) uint32 { return grids[i] })
			clear(launches[4][16:24]) // no context: fails before the driver sees it
			c.must(wire.OpPing, words(0))
			d.mu.Lock()
			*d.lines = nil
			d.mu.Unlock()
			record := c.command(0, cuda.OpCuEventRecord, 0, words(e, 0))
			commands := slices.Insert(launches, 3, record)
			c.seq -= uint64(len(record))
			c.write(c.again(commands...))
			r, _ := c.call(cuda.OpCuStreamSynchronize, words(0))
			if r != cuda.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES {
				t.Errorf("the first failure is told as %v", r)
			}
			want := []string{
				"launch 1 with 0", "launch 13 with 1", "launch 3 with 2", "record", "launch 4 with 3", "context 0", "context 1",
				"launch 6 with 5",
			}
			lists := []string{"list of 3", "list of 1", "list of 1"}
			d.mu.Lock()
			defer d.mu.Unlock()
			var got, gotLists []string
			for _, line := range *d.lines {
				if strings.HasPrefix(line, "list") {
					gotLists = append(gotLists, line)
				} else {
					got = append(got, line)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the driver saw %q, not %q", got, want)
			}
			if together && !slices.Equal(gotLists, lists) {
				t.Errorf("lists %q, not %q", gotLists, lists)
			}
		})
	}
}

// Many launches in one frame, more than a run holds.
func TestManyLaunches(t *testing.T) {
	d := diary{mu: new(sync.Mutex), lines: new([]string)}
	c := connect(t, func(cfg *Config) { cfg.GPU = batch{d} })
	commands := quickLaunches(c, 200, func(i int) uint32 { return uint32(i + 100) })
	var want []string
	for i := range commands {
		want = append(want, fmt.Sprintf("launch %d with %d", i+100, i))
	}
	c.write(c.again(commands...))
	c.must(wire.OpPing, words(0))
	d.mu.Lock()
	defer d.mu.Unlock()
	var got []string
	for _, line := range *d.lines {
		if line[:6] == "launch" {
			got = append(got, line)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the driver saw %q", got)
	}
}

// lineOf is a connection as the worker hands it over.
func lineOf(t testing.TB, c net.Conn) *transport.Line {
	t.Helper()
	l, err := transport.NewLine(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
