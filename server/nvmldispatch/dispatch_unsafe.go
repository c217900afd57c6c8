package nvmldispatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

const (
	maxBytes     = 1 << 20 // of a request and of a reply, as the front's
	maxVersioned = 1 << 16 // of a structure that says its own size
)

// ErrMalformed is the cause of every error that a client's bytes give; the session ends with it.
var ErrMalformed = errors.New("malformed NVML request")

func malformed(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrMalformed, name, fmt.Sprintf(format, args...))
}

// TableSizer is implemented by drivers that know the private table of nvidia-smi.
type TableSizer interface {
	// ExportTableSize gives the bytes of the private table with that UUID, 0 where there is none.
	ExportTableSize(uuid [16]byte) uint64
}

// Dispatcher serves one session. It is not safe for concurrent use.
type Dispatcher struct {
	drv     nvml.Driver
	handles [kinds]*handles
	inits   int
	arena   []uint64
}

// New makes the dispatcher of a session. The driver is initialised by the client's own call.
func New(drv nvml.Driver) *Dispatcher {
	d := &Dispatcher{drv: drv}
	for k := range d.handles {
		d.handles[k] = newHandles()
	}
	return d
}

// Close undoes the session's initialisations.
func (d *Dispatcher) Close() {
	for ; d.inits > 0; d.inits-- {
		d.drv.NvmlShutdown()
	}
}

// Call carries out operation op and writes its results into reply. It returns the NVML status and the bytes of the reply. An error says that
// the request is malformed, which ends the session.
func (d *Dispatcher) Call(op uint16, req, reply []byte) (result int32, n int, err error) {
	if op == nvml.OpNvmlInternalGetExportTable {
		return d.tableSize(req, reply)
	}
	if int(op) >= len(functions) || functions[op].call == nil {
		return 0, 0, fmt.Errorf("%w: operation %d is none that is forwarded", ErrMalformed, op)
	}
	f := &functions[op]
	c := &call{d: d, f: f}
	if err := c.decode(req); err != nil {
		return 0, 0, err
	}
	if c.badHandle {
		return int32(nvml.NVML_ERROR_INVALID_ARGUMENT), 0, nil
	}
	status := f.call(d.drv, &c.args)
	if status == nvml.NVML_SUCCESS {
		c.account(op)
	}
	n, err = c.encode(status, reply)
	return int32(status), n, err
}

func (d *Dispatcher) tableSize(req, reply []byte) (int32, int, error) {
	if len(req) != 24 || binary.LittleEndian.Uint64(req) != 16 || len(reply) < 8 {
		return 0, 0, malformed("nvmlInternalGetExportTable", "a request of %d bytes instead of a UUID", len(req))
	}
	size := uint64(0)
	if t, ok := d.drv.(TableSizer); ok {
		size = t.ExportTableSize([16]byte(req[8:]))
	}
	if size == 0 {
		return int32(nvml.NVML_ERROR_NOT_FOUND), 0, nil
	}
	binary.LittleEndian.PutUint64(reply, size)
	return 0, 8, nil
}

// call is one call under way.
type call struct {
	d         *Dispatcher
	f         *function
	args      arguments
	n         [maxParams]uint64 // elements of a pointer parameter, 0: NULL
	size      [maxParams]uint32 // bytes of an element
	buf       [maxParams][]byte
	badHandle bool
}

// decode reads the request and gives every pointer parameter a buffer of its own.
func (c *call) decode(req []byte) error {
	name := c.f.name
	var source [maxParams][]byte
	words := 0
	for i := range c.f.params {
		p := &c.f.params[i]
		v, rest, ok := word(req)
		if !ok {
			return malformed(name, "it ends before parameter %d", i)
		}
		req = rest
		if p.dir == dirValue {
			c.args.word[i] = c.handle(p.kind, v)
			continue
		}
		c.n[i], c.size[i] = v, p.size
		if p.flags&versioned != 0 {
			c.size[i] = 1
		}
		if v > maxBytes/uint64(c.size[i]) {
			return malformed(name, "parameter %d has %d elements", i, v)
		}
		data := int(v) * int(c.size[i])
		if p.dir != dirOut && v != 0 {
			padded := (data + 7) &^ 7
			if padded > len(req) {
				return malformed(name, "it ends within parameter %d", i)
			}
			source[i], req = req[:data], req[padded:]
		}
		words += (max(data, int(p.size)) + 7) / 8
	}
	if len(req) != 0 {
		return malformed(name, "%d bytes too many", len(req))
	}
	c.place(words, &source)
	return c.check()
}

// place lays the buffers out in the arena, which is zeroed first.
func (c *call) place(words int, source *[maxParams][]byte) {
	if len(c.d.arena) < words {
		c.d.arena = make([]uint64, max(words, 4096))
	}
	arena := c.d.arena[:words]
	clear(arena)
	for i := range c.f.params {
		p := &c.f.params[i]
		if p.dir == dirValue || c.n[i] == 0 {
			continue
		}
		data := int(c.n[i]) * int(c.size[i])
		w := (max(data, int(p.size)) + 7) / 8
		c.args.at[i] = unsafe.Pointer(&arena[0])
		c.buf[i] = unsafe.Slice((*byte)(c.args.at[i]), data)
		arena = arena[w:]
		copy(c.buf[i], source[i])
		if p.dir != dirOut {
			c.eachHandle(i, c.n[i], func(k nvml.Kind, b []byte) error {
				binary.LittleEndian.PutUint64(b, c.handle(k, binary.LittleEndian.Uint64(b)))
				return nil
			})
		}
	}
}

// check compares the elements that the client has room for with those that the driver will be told of.
func (c *call) check() error {
	for i := range c.f.params {
		p := &c.f.params[i]
		n := c.n[i]
		if p.dir == dirValue || n == 0 {
			continue
		}
		want := uint64(p.count)
		switch {
		case p.dir == dirStr:
			if c.buf[i][n-1] != 0 {
				return malformed(c.f.name, "parameter %d is a string without an end", i)
			}
			continue
		case p.flags&versioned != 0:
			if n < 4 || n > maxVersioned {
				return malformed(c.f.name, "parameter %d is a structure of %d bytes", i, n)
			}
			if n == 4 {
				continue // the front found no size in the version; the driver refuses it by the version
			}
			want = uint64(p.size)
			if v := binary.LittleEndian.Uint32(c.buf[i]); v>>24 != 0 {
				want = uint64(v & 0xffffff)
			}
		case p.countArg != 0:
			want = c.counted(p)
		}
		if n != want {
			return malformed(c.f.name, "parameter %d has %d elements, its count says %d", i, n, want)
		}
	}
	return nil
}

// counted gives the number of elements as the driver sees it.
func (c *call) counted(p *param) uint64 {
	arg := p.countArg - 1
	if p.flags&countPointer == 0 {
		return uint64(uint32(c.args.word[arg]))
	}
	if c.args.at[arg] == nil {
		return 0
	}
	return uint64(binary.LittleEndian.Uint32(c.buf[arg]))
}

// handle translates a client's handle and remembers when it knows none such.
func (c *call) handle(k nvml.Kind, id uint64) uint64 {
	if k == 0 {
		return id
	}
	real, ok := c.d.toReal(k, id)
	if !ok {
		c.badHandle = true
	}
	return real
}

// eachHandle visits the handles in the first n elements of parameter i.
func (c *call) eachHandle(i int, n uint64, visit func(k nvml.Kind, b []byte) error) error {
	p := &c.f.params[i]
	for e := range n {
		at := c.buf[i][e*uint64(c.size[i]):]
		if p.kind != 0 {
			if err := visit(p.kind, at[:8]); err != nil {
				return err
			}
		}
		if c.size[i] == 1 && e > 0 {
			break // a structure in bytes: its handles were visited with the first
		}
		for _, x := range p.patches {
			if int(x.offset)+8 > len(at) {
				continue
			}
			if err := visit(x.kind, at[x.offset:x.offset+8]); err != nil {
				return err
			}
		}
	}
	return nil
}

// account keeps what the session has to undo.
func (c *call) account(op uint16) {
	if op == nvml.OpNvmlInitWithFlags {
		c.d.inits++
	}
	for i := range c.f.params {
		if p := &c.f.params[i]; p.flags&deletes != 0 {
			h := c.d.handles[p.kind]
			h.remove(h.id[c.args.word[i]])
		}
	}
}

// encode writes the results: all after success, what also went in (the counts) after INSUFFICIENT_SIZE, else nothing.
func (c *call) encode(status nvml.NvmlReturn, reply []byte) (int, error) {
	if status != nvml.NVML_SUCCESS && status != nvml.NVML_ERROR_INSUFFICIENT_SIZE {
		return 0, nil
	}
	at := 0
	for i := range c.f.params {
		p := &c.f.params[i]
		if p.dir != dirInOut && (p.dir != dirOut || status != nvml.NVML_SUCCESS) {
			continue
		}
		n := c.n[i]
		if p.flags&countPointer != 0 && status == nvml.NVML_SUCCESS {
			n = min(n, c.counted(p))
		}
		if p.flags&text != 0 && n != 0 {
			if end := bytes.IndexByte(c.buf[i][:n], 0); end >= 0 {
				n = uint64(end) + 1
			}
		}
		err := c.eachHandle(i, n, func(k nvml.Kind, b []byte) error {
			id, err := c.d.toWire(k, binary.LittleEndian.Uint64(b))
			binary.LittleEndian.PutUint64(b, id)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.f.name, err)
		}
		data := int(n) * int(c.size[i])
		padded := (data + 7) &^ 7
		if at+8+padded > len(reply) {
			return 0, malformed(c.f.name, "the results need more than the %d bytes of a reply", len(reply))
		}
		binary.LittleEndian.PutUint64(reply[at:], n)
		copy(reply[at+8:], c.buf[i][:data])
		clear(reply[at+8+data : at+8+padded])
		at += 8 + padded
	}
	return at, nil
}

func word(b []byte) (uint64, []byte, bool) {
	if len(b) < 8 {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint64(b), b[8:], true
}
