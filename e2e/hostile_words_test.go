package e2e

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

// Payloads made from the description: each word by what it is, now right, now wrong.

var hostileSetting = os.Getenv("SCUDA_HOSTILE") // before TestMain takes the settings away

// hostileCall is an operation and how to make a payload for it.
type hostileCall struct {
	name    string
	op      uint16
	payload func(*words) []byte
}

// endless are operations that wait for a value which does not come: nothing more would be heard of the session.
var endless = []string{"cuStreamWaitValue", "cuStreamBatchMemOp"}

func hostileCalls(spec *api.Spec) (calls []hostileCall) {
	for _, fn := range spec.CUDA.Funcs {
		waits := false
		for _, e := range endless {
			waits = waits || strings.HasPrefix(fn.Name, e)
		}
		if fn.PTSZ || fn.Op == 0 || !fn.Generic || waits {
			continue
		}
		calls = append(calls, hostileCall{fn.Name, fn.Op, func(w *words) []byte { return w.generic(fn) }})
	}
	for _, s := range spec.Wire {
		if s.Op != 0 {
			calls = append(calls, hostileCall{s.Name, s.Op, func(w *words) []byte { return w.wire(&s) }})
		}
	}
	return calls
}

// TestHostileCallsAreWhole: every operation that the server carries out has its hostile calls, but the endless ones.
// Those of functions that travel in other forms are refused (TestOperationsWithoutForm in server/executor).
func TestHostileCallsAreWhole(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	have := map[uint16]bool{}
	for _, c := range hostileCalls(spec) {
		have[c.op] = true
	}
	for _, fn := range spec.CUDA.Funcs {
		without := slices.ContainsFunc(endless, func(e string) bool { return strings.HasPrefix(fn.Name, e) })
		if carried := fn.Op != 0 && fn.Generic; carried && have[fn.Op] == without {
			t.Errorf("%s: it has hostile calls: %t, it is endless: %t", fn.Name, have[fn.Op], without)
		}
	}
	for _, s := range spec.Wire {
		if s.Op != 0 && !have[s.Op] {
			t.Errorf("%s has no hostile calls", s.Name)
		}
	}
}

// words draws the words of one payload.
type words struct {
	h    *hostile
	spec *api.Spec
	rand *rand.Rand
	out  []byte
}

func (w *words) u64(v uint64)          { w.out = binary.LittleEndian.AppendUint64(w.out, v) }
func (w *words) one(in int) bool       { return w.rand.IntN(in) == 0 }
func (w *words) of(v ...uint64) uint64 { return v[w.rand.IntN(len(v))] }

var (
	sizes = []uint64{
		0, 1, 4, 8, 64, 4096, 65536, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 40, 1 << 47, 1 << 62, 1 << 63,
		^uint64(0), ^uint64(0) - 4095,
	}
	numbers = []uint64{
		0, 1, 2, 3, 4, 5, 8, 13, 16, 31, 32, 63, 64, 100, 255, 1024, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1,
		^uint64(0),
	}
	offsets  = []uint64{0, 0, 0, 4, 64, hostileBytes - 4, hostileBytes, hostileBytes + 1}
	nonsense = []uint64{0, 1, 2, 3, 0x1234, 0x41414141_41414140, 1 << 63, ^uint64(0)}
)

// handle is one of the type, of another type, or nothing.
func (w *words) handle(ctype string) uint64 {
	switch have := w.h.handles[ctype]; {
	case len(have) > 0 && !w.one(4):
		return have[w.rand.IntN(len(have))]
	case w.one(2):
		return w.of(hostileBase, hostileBase+64, hostileBase+2*64, hostileBase+5*64, 2*hostileBase)
	case w.one(2): //nolint:gocritic // chance decides anew
		return w.h.victim
	}
	return w.of(nonsense...)
}

// address is device memory, the worker's memory, or nothing.
func (w *words) address() uint64 {
	switch w.rand.IntN(6) {
	case 0, 1:
		return w.h.victim
	case 2:
		return w.of(nonsense...)
	}
	return w.h.memory[w.rand.IntN(2)] + w.of(offsets...)
}

// value is a word of a type.
func (w *words) value(ctype string) uint64 {
	ctype = strings.TrimPrefix(ctype, "const ")
	t, _ := w.spec.CUDA.Lookup(ctype)
	switch {
	case t.Kind == "handle":
		return w.handle(t.Underlying)
	case len(w.h.handles[ctype]) > 0:
		return w.handle(ctype)
	case ctype == "CUdeviceptr", t.Kind == "pointer", t.Kind == "func":
		return w.address()
	case t.Kind == "enum":
		if values := w.spec.CUDA.EnumValues(t.Underlying); len(values) > 0 && !w.one(8) {
			return uint64(values[w.rand.IntN(len(values))])
		}
		return w.of(numbers...)
	case t.Size == 8 && !w.one(3):
		return w.of(sizes...)
	case t.Size == 8 && w.one(4):
		return w.address()
	}
	return w.of(numbers...)
}

// record fills a structure field by field; of unions one member or another.
func (w *words) record(b []byte, s *api.Struct) {
	for _, f := range s.Fields {
		n := 1
		for _, d := range f.Array {
			n *= d
		}
		t, _ := w.spec.CUDA.Lookup(f.CType)
		inner, size := f.Sub, t.Size
		if inner == nil {
			inner = w.spec.CUDA.Struct(f.CType)
		}
		if inner != nil {
			size = inner.Size
		}
		if s.Union && w.one(2) {
			continue
		}
		for i := range n {
			at := f.Offset + i*size
			if size == 0 || at+size > len(b) {
				break
			}
			if inner != nil {
				w.record(b[at:at+size], inner)
				continue
			}
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], w.value(f.CType))
			copy(b[at:at+size], word[:])
		}
	}
}

// elements are n of a parameter's.
func (w *words) elements(p api.Param, n uint64) {
	b := make([]byte, (n*uint64(p.Size)+7)&^7)
	for i := range n {
		e := b[i*uint64(p.Size):][:p.Size]
		if s := w.spec.CUDA.Struct(p.Elem); s != nil {
			w.record(e, s)
			continue
		}
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], w.value(p.Elem))
		copy(e, word[:])
	}
	w.out = append(w.out, b...)
}

// generic is a payload as the generated encoding has it. Counts mostly say what is there.
func (w *words) generic(fn *api.Func) []byte {
	counts := map[string]uint64{}
	count := func(p api.Param) uint64 {
		name, _, _ := strings.Cut(strings.TrimPrefix(p.Count, "*"), "-")
		if len(name) > 0 && name[0] >= '0' && name[0] <= '9' {
			n := uint64(0)
			for _, d := range name {
				n = n*10 + uint64(d-'0')
			}
			return n
		}
		if _, ok := counts[name]; !ok {
			counts[name] = w.of(0, 1, 1, 2, 3)
		}
		return counts[name]
	}
	for _, p := range fn.Params {
		if p.Dir == api.In || p.Dir == api.InOut || p.Dir == api.Out || p.Dir == api.Ret {
			count(p)
		}
	}
	for _, p := range fn.Params {
		n, isCount := counts[p.Name]
		switch p.Dir {
		case api.Value, api.Opaque:
			switch {
			case p.Dir == api.Value && p.Struct:
				w.elements(p, 1)
			case isCount && !w.one(6):
				w.u64(n)
			default:
				w.u64(w.value(p.CType))
			}
		case api.In, api.InOut:
			n := count(p)
			if w.one(8) {
				n = 0
			}
			w.u64(n)
			w.elements(p, n)
		case api.Str:
			w.u64(8)
			w.u64(w.of(0, 0x6d6f6e, 0x616e))
		case api.New:
			w.u64(w.h.slot(p.Handle))
		case api.Out, api.Ret:
			n := count(p)
			if w.one(8) {
				n = w.of(0, 1, 100, 1<<40)
			}
			w.u64(n)
		}
	}
	return w.out
}

// wire is a payload of a hand-written operation: its fields, and words behind them.
func (w *words) wire(s *api.WireStruct) []byte {
	b := make([]byte, s.Size)
	for _, f := range s.Fields {
		n := 1
		for _, d := range f.Array {
			n *= d
		}
		size := map[string]int{"u8": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8}[f.CType]
		for i := range n {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], w.field(f.Name, size))
			copy(b[f.Offset+i*size:][:size], word[:])
		}
	}
	w.out = append(w.out, b...)
	for range w.rand.IntN(20) {
		w.u64(w.of(w.address(), w.of(sizes...), w.of(numbers...), w.handle("CUgraphNode")))
	}
	return w.out
}

// fieldTypes says what some names of fields are; other 64-bit fields may be anything.
var fieldTypes = map[string]string{
	"stream": "CUstream", "graph": "CUgraph", "node": "CUgraphNode", "exec": "CUgraphExec", "func": "CUfunction",
	"parent": "CUmodule", "library": "CUlibrary", "context": "CUcontext",
	"dst": "CUdeviceptr", "src": "CUdeviceptr", "address": "CUdeviceptr", "pointer": "CUdeviceptr", "bytes": "size_t",
	"device": "int",
}

func (w *words) field(name string, size int) uint64 {
	if ctype, ok := fieldTypes[name]; ok && !w.one(5) {
		if ctype == "int" {
			return w.of(0, 0, 1)
		}
		return w.value(ctype)
	}
	if size == 8 {
		switch w.rand.IntN(5) {
		case 0:
			return w.address()
		case 1:
			return w.of(sizes...)
		case 2:
			return w.handle("CUgraph")
		}
	}
	return w.of(numbers...)
}
