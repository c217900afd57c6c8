// Package ptxtest holds kernel launches with their inputs and results in one file, and runs them on the interpreter.
// The same files are run on a GPU by perf/gpu/ptx_check.py and written there by perf/gpu/triton_ptx.py, so that both
// can be compared.
package ptxtest

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"scuda.dev/scuda/sim/ptx"
)

// Bundle is a file of launches.
type Bundle struct {
	Inputs   map[string][]byte `json:"inputs,omitempty"` // shared between arguments
	Modules  []string          `json:"modules"`
	Launches []*Launch         `json:"launches"`
}

// Launch is one kernel launch.
type Launch struct {
	Name   string    `json:"name"`
	Module int       `json:"module"`
	Kernel string    `json:"kernel"`
	Grid   [3]uint32 `json:"grid"`
	Block  [3]uint32 `json:"block"`
	Shared uint32    `json:"shared,omitempty"`
	Args   []*Arg    `json:"args"`
	// Steps are the instructions whose results a trace buffer (the last argument) holds, 8 bytes a thread each.
	Steps []string `json:"steps,omitempty"`
}

// Arg is a kernel argument: a value, or the address of a buffer.
type Arg struct {
	Value []byte `json:"value,omitempty"`
	Size  int    `json:"size,omitempty"`
	// A buffer begins as Input, else In, else with all bytes Fill.
	Input string `json:"input,omitempty"`
	In    []byte `json:"in,omitempty"`
	Fill  byte   `json:"fill,omitempty"`
	// Want is what it holds afterwards: equal bits, or for Type f32 and f16 within Ulp units in the last place or Tol of
	// the value (of 1 for smaller ones).
	Want []byte  `json:"want,omitempty"`
	Type string  `json:"type,omitempty"`
	Ulp  int     `json:"ulp,omitempty"`
	Tol  float64 `json:"tol,omitempty"`
}

// Read opens a bundle's file.
func Read(path string) (b *Bundle, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	b = &Bundle{}
	if err := json.NewDecoder(z).Decode(b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// Write makes a bundle's file.
func (b *Bundle) Write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	return errors.Join(json.NewEncoder(z).Encode(b), z.Close(), f.Close())
}

// Machine is memory in which launches run one after the other.
type Machine struct {
	bytes []byte
	used  uint64
}

const (
	machineBase  = 0x7f0000000000
	machineBytes = 256 << 20
)

// NewMachine makes a machine; Close frees it.
func NewMachine() (*Machine, error) {
	b, err := syscall.Mmap(-1, 0, machineBytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	return &Machine{bytes: b}, err
}

// Close frees the memory.
func (m *Machine) Close() error { return syscall.Munmap(m.bytes) }

// Region makes a Machine the memory of a grid.
func (m *Machine) Region(addr uint64) (ptx.Region, bool) {
	return ptx.Region{Start: machineBase, Bytes: m.bytes}, addr >= machineBase && addr < machineBase+machineBytes
}

var errFull = errors.New("ptxtest: a launch needs more than 256 MiB")

func (m *Machine) alloc(n uint64) (addr uint64, b []byte, err error) {
	at := (m.used + 255) &^ 255
	if n > machineBytes || at+n > machineBytes {
		return 0, nil, errFull
	}
	m.used = at + n
	return machineBase + at, m.bytes[at : at+n : at+n], nil
}

// Run executes a launch and returns what each argument's buffer holds afterwards.
func (m *Machine) Run(ctx context.Context, b *Bundle, mod *ptx.Module, l *Launch) ([][]byte, error) {
	m.used = 0
	e := mod.Entry(l.Kernel)
	if e == nil || len(e.Params) != len(l.Args) {
		return nil, fmt.Errorf("ptxtest: %s: no kernel %s with %d parameters", l.Name, l.Kernel, len(l.Args))
	}
	globals, err := m.globals(mod)
	if err != nil {
		return nil, err
	}
	params := make([]byte, e.ParamSize)
	buffers := make([][]byte, len(l.Args))
	for i, a := range l.Args {
		p := params[e.Params[i].Offset : e.Params[i].Offset+e.Params[i].Size]
		if a.Value != nil {
			copy(p, a.Value)
			continue
		}
		addr, buf, err := m.alloc(uint64(a.Size))
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, l.Name)
		}
		for k := range buf {
			buf[k] = a.Fill
		}
		copy(buf, a.In)
		copy(buf, b.Inputs[a.Input])
		binary.LittleEndian.PutUint64(p, addr)
		buffers[i] = buf
	}
	g := &ptx.Grid{Kernel: e, GridDim: l.Grid, BlockDim: l.Block, SharedBytes: l.Shared, Params: params, Mem: m,
		Globals: globals, MaxInstructions: 1 << 34}
	if err := g.Run(ctx); err != nil {
		return nil, fmt.Errorf("ptxtest: %s: %w", l.Name, err)
	}
	for i, b := range buffers {
		buffers[i] = append([]byte(nil), b...)
	}
	return buffers, nil
}

func (m *Machine) globals(mod *ptx.Module) (map[string]uint64, error) {
	addrs, bytes := map[string]uint64{}, map[string][]byte{}
	for _, g := range mod.Globals {
		addr, b, err := m.alloc(g.Size)
		if err != nil {
			return nil, err
		}
		clear(b)
		copy(b, g.Init)
		addrs[g.Name], bytes[g.Name] = addr, b
	}
	for _, g := range mod.Globals {
		for _, r := range g.Relocs {
			if r.Size == 8 {
				binary.LittleEndian.PutUint64(bytes[g.Name][r.Offset:], addrs[r.Symbol]+uint64(r.Addend))
			}
		}
	}
	return addrs, nil
}

// Difference describes the first place where a buffer is not as wanted, or is "".
func (a *Arg) Difference(got []byte) string {
	if a.Want == nil {
		return ""
	}
	if len(got) != len(a.Want) {
		return fmt.Sprintf("%d bytes, not %d", len(got), len(a.Want))
	}
	size := map[string]int{"f32": 4, "f16": 2, "": 1}[a.Type]
	for i := 0; i < len(got); i += size {
		switch a.Type {
		case "f32":
			x, y := binary.LittleEndian.Uint32(got[i:]), binary.LittleEndian.Uint32(a.Want[i:])
			fx, fy := float64(math.Float32frombits(x)), float64(math.Float32frombits(y))
			if x == y || fx != fx && fy != fy || near(fx, fy, a.Tol) ||
				abs32(x)-abs32(y) <= int64(a.Ulp) && abs32(y)-abs32(x) <= int64(a.Ulp) {
				continue
			}
			return fmt.Sprintf("float %d is %v (%#x), not %v (%#x)", i/4, fx, x, fy, y)
		case "f16":
			x, y := binary.LittleEndian.Uint16(got[i:]), binary.LittleEndian.Uint16(a.Want[i:])
			if x == y || near(half(x), half(y), a.Tol) {
				continue
			}
			return fmt.Sprintf("half %d is %v, not %v", i/2, half(x), half(y))
		default:
			if got[i] != a.Want[i] {
				return fmt.Sprintf("byte %d is %#x, not %#x", i, got[i], a.Want[i])
			}
		}
	}
	return ""
}

// abs32 numbers the floats in their order.
func abs32(x uint32) int64 {
	if x>>31 != 0 {
		return -int64(x & 0x7fffffff)
	}
	return int64(x)
}

func near(x, y, tol float64) bool { return math.Abs(x-y) <= tol*max(1, math.Abs(y)) }

func half(x uint16) float64 {
	v := float64(x&0x3ff) * 0x1p-24
	if e := int(x >> 10 & 31); e == 31 {
		v = math.Inf(1)
		if x&0x3ff != 0 {
			v = math.NaN()
		}
	} else if e > 0 {
		v = math.Ldexp(float64(x&0x3ff|0x400), e-25)
	}
	if x>>15 != 0 {
		return -v
	}
	return v
}
