package nvmldispatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"unsafe"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/driver/invoke"
)

const (
	maxBytes     = 1 << 20 // of a request and of a reply, as the front's
	maxVersioned = 1 << 16 // of a structure that says its own size

	empty = 1 << 63 // as a number of elements: there is a place for the array, but it is said to hold nothing; 0 is NULL
)

// ErrMalformed is the cause of every error that a client's bytes give; the session ends with it.
var ErrMalformed = errors.New("malformed NVML request")

func malformed(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrMalformed, name, fmt.Sprintf(format, args...))
}

// Process is a client process whose work a process of the server does.
type Process struct {
	Server  uint32 // pid of the worker
	Client  uint32 // pid on the client's machine
	Program string
}

// Memory is what the session may see of each GPU's memory, in bytes.
type Memory struct {
	Limit uint64 // 0: all that there is
	Used  uint64 // counted against it
}

// Options say what a session may see and do. All may be left out.
type Options struct {
	Settings  bool             // functions that change settings of a GPU are carried out
	Processes func() []Process // the processes of this client's machine, of its tenant
	Memory    func() Memory
	GPUs      []string // UUIDs of those that the session sees; none: all
	Log       *slog.Logger
}

// Dispatcher serves one session. It is not safe for concurrent use.
type Dispatcher struct {
	Options
	drv     nvml.Driver
	told    map[string]bool // refused settings that were logged
	handles [kinds]*handles
	inits   int
	own     []uint64 // the driver's handles of the GPUs that the session sees, in NVML's order; nil: not known yet
	arena   []uint64
	words   nvml.Words // of the call under way
}

// New makes the dispatcher of a session. The driver is initialised by the client's own call.
func New(drv nvml.Driver, o Options) *Dispatcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Dispatcher{Options: o, drv: drv, told: map[string]bool{}}
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

// Call carries out operation op and writes its results into reply. It returns the NVML status and the bytes of the
// reply. An error says that the request is malformed, which ends the session.
func (d *Dispatcher) Call(op uint16, req, reply []byte) (result int32, n int, err error) {
	switch op {
	case nvml.OpNvmlInternalGetExportTable:
		return d.table(req, reply)
	case nvml.OpNvmlErrorString:
		return d.errorText(req, reply)
	case nvml.OpNvmlGpmMetricsGet:
		return d.metrics(req, reply)
	}
	if int(op) >= len(functions) || functions[op].name == "" {
		return 0, 0, fmt.Errorf("%w: operation %d is none that is forwarded", ErrMalformed, op)
	}
	f := &functions[op]
	c := &call{d: d, f: f}
	if err := c.decode(req); err != nil {
		return 0, 0, err
	}
	if c.badHandle || c.lacks() {
		return int32(nvml.NVML_ERROR_INVALID_ARGUMENT), 0, nil
	}
	if f.denied && !d.Settings {
		d.refuse(f.name)
		return int32(nvml.NVML_ERROR_NO_PERMISSION), 0, nil
	}
	if op == nvml.OpNvmlSystemGetProcessName {
		if status, known := c.processName(); known {
			n, err = c.encode(status, reply)
			return int32(status), n, err
		}
	}
	if !c.indexToServer(op) {
		return int32(nvml.NVML_ERROR_INVALID_ARGUMENT), 0, nil
	}
	c.pidsToServer(op)
	status := c.ofNobody(op, c.invoke(op))
	c.pidsToClient(op, status)
	c.limitMemory(op, status)
	status = c.devicesToClient(op, status)
	if status == nvml.NVML_SUCCESS && !f.optional && c.missed() {
		status = nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	if status == nvml.NVML_SUCCESS {
		c.account(op)
	}
	n, err = c.encode(status, reply)
	return int32(status), n, err
}

// invoke calls the library.
func (c *call) invoke(op uint16) nvml.NvmlReturn {
	words := &c.d.words
	for i := range c.f.params {
		switch p := &c.f.params[i]; {
		case p.dir != dirValue:
			words[i] = uint64(uintptr(c.args.at[i])) // in the arena, which is never on a stack
		case p.size == 4:
			words[i] = uint64(uint32(c.args.word[i]))
		default:
			words[i] = c.args.word[i]
		}
	}
	return invoke.NVML(c.d.drv, op, words)
}

// refuse logs a setting that is not changed, once each.
func (d *Dispatcher) refuse(name string) {
	if !d.told[name] {
		d.told[name] = true
		d.Log.Warn("a client may not change settings of the GPUs; start the server with --allow-nvml-set to allow it",
			"function", name)
	}
}

// call is one call under way.
type call struct {
	d         *Dispatcher
	f         *function
	args      arguments
	n         [maxParams]uint64 // elements of a pointer parameter, 0: NULL
	size      [maxParams]uint32 // bytes of an element
	buf       [maxParams][]byte
	within    [maxParams]uint64 // elements of the array that a structure points at
	array     [maxParams][]byte
	empty     [maxParams]bool // a place without room
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
			if c.args.word[i] = c.handle(p.kind, v); p.flags&enum != 0 {
				c.args.word[i] = codec.Enumerator(v)
			}
			continue
		}
		if v == empty && p.dir == dirOut && p.countArg != 0 {
			v, c.empty[i] = 0, true
		}
		c.n[i], c.size[i] = v, p.size
		if p.flags&versioned != 0 || p.array != nil || p.tail != 0 {
			c.size[i] = 1 // structures with something at their end or behind them are counted in bytes
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
		if p.array != nil && v != 0 {
			if c.within[i], req, ok = word(req); !ok || c.within[i] > maxBytes/uint64(p.array.size) {
				return malformed(name, "the array behind parameter %d has %d elements", i, c.within[i])
			}
			size := int(c.within[i]) * int(p.array.size)
			padded := (size + 7) &^ 7
			if padded > len(req) {
				return malformed(name, "it ends within the array behind parameter %d", i)
			}
			c.array[i], req = req[:size], req[padded:]
			words += padded / 8
		}
	}
	if len(req) != 0 {
		return malformed(name, "%d bytes too many", len(req))
	}
	c.place(words, &source)
	return c.check()
}

// room gives zeroed words that stay where they are while the driver writes into them.
func (d *Dispatcher) room(words int) []uint64 {
	if len(d.arena) < words {
		d.arena = make([]uint64, max(words, 4096))
	}
	clear(d.arena[:words])
	return d.arena[:words]
}

// place lays the buffers out in the arena, which is zeroed first.
func (c *call) place(words int, source *[maxParams][]byte) {
	arena := c.d.room(words)
	for i := range c.f.params {
		p := &c.f.params[i]
		if c.unwanted(i) { // the driver would follow NULL: it gets a place of ours
			c.args.at[i] = unsafe.Pointer(&arena[0])
			arena = arena[(int(p.size)+7)/8:]
		}
		if p.dir == dirValue || c.n[i] == 0 && !c.empty[i] {
			continue
		}
		data := int(c.n[i]) * int(c.size[i])
		w := (max(data, int(p.size)) + 7) / 8
		c.args.at[i] = unsafe.Pointer(&arena[0])
		c.buf[i] = unsafe.Slice((*byte)(c.args.at[i]), data)
		arena = arena[w:]
		copy(c.buf[i], source[i])
		arena = c.placeArray(i, arena)
		if p.dir != dirOut {
			_ = c.eachHandle(i, c.n[i], func(k nvml.Kind, b []byte) error { // which has none
				binary.LittleEndian.PutUint64(b, c.handle(k, binary.LittleEndian.Uint64(b)))
				return nil
			})
		}
	}
}

// placeArray gives the array that parameter i points at its place and stores that in the structure; the client's own
// address never gets here.
func (c *call) placeArray(i int, arena []uint64) []uint64 {
	a := c.f.params[i].array
	if a == nil || len(c.buf[i]) < int(a.pointer)+8 {
		return arena
	}
	at := uint64(0)
	if n := int(c.within[i]) * int(a.size); n > 0 {
		sent := c.array[i]
		c.array[i] = unsafe.Slice((*byte)(unsafe.Pointer(&arena[0])), n)
		copy(c.array[i], sent)
		at = uint64(uintptr(unsafe.Pointer(&arena[0]))) // the arena keeps it
		arena = arena[(n+7)/8:]
	}
	binary.LittleEndian.PutUint64(c.buf[i][a.pointer:], at)
	return arena
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
			if err := c.checkArray(i); err != nil {
				return err
			}
		case p.array != nil:
			want = uint64(p.size)
			if n != want {
				break
			}
			if err := c.checkArray(i); err != nil {
				return err
			}
		case p.tail != 0:
			want = uint64(p.size)
			if n < want {
				break
			}
			want += max(uint64(binary.LittleEndian.Uint32(c.buf[i][p.tail:])), tailRoom) - tailRoom
		case p.flags&fills != 0:
		case p.countArg != 0:
			want = c.counted(p)
		}
		if n != want {
			return malformed(c.f.name, "parameter %d has %d elements, its count says %d", i, n, want)
		}
	}
	return nil
}

// checkArray compares the array behind a structure with what the structure says of it.
func (c *call) checkArray(i int) error {
	a := c.f.params[i].array
	if a == nil {
		return nil
	}
	if c.n[i] != uint64(c.f.params[i].size) {
		return malformed(c.f.name, "parameter %d is a structure of %d bytes, so its array cannot be found", i, c.n[i])
	}
	if n := c.within[i]; n != 0 && n != uint64(binary.LittleEndian.Uint32(c.buf[i][a.count:])) {
		return malformed(c.f.name, "the array behind parameter %d has %d elements, its count says otherwise", i, n)
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

// lacks says whether there is NULL in place of a handle or of what the driver reads.
func (c *call) lacks() bool {
	for i := range c.f.params {
		p := &c.f.params[i]
		switch {
		case p.dir == dirValue:
			if p.kind != 0 && c.args.word[i] == 0 {
				return true
			}
		case c.args.at[i] == nil && p.countArg == 0 && p.flags&fills == 0:
			return true
		}
	}
	return false
}

// unwanted says whether parameter i is a place for a single result that is NULL.
func (c *call) unwanted(i int) bool {
	p := &c.f.params[i]
	return p.dir == dirOut && c.n[i] == 0 && p.countArg == 0 && p.flags&fills == 0
}

// missed says whether there is such a parameter.
func (c *call) missed() bool {
	for i := range c.f.params {
		if c.unwanted(i) {
			return true
		}
	}
	return false
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
		p := &c.f.params[i]
		if p.flags&deletes == 0 {
			continue
		}
		if p.dir == dirValue {
			c.d.forget(p.kind, c.args.word[i])
			continue
		}
		_ = c.eachHandle(i, c.n[i], func(k nvml.Kind, b []byte) error {
			c.d.forget(k, binary.LittleEndian.Uint64(b))
			return nil
		})
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
		within := c.takeArray(i, status)
		if at, err = c.put(reply, at, n, c.buf[i][:int(n)*int(c.size[i])]); err != nil {
			return 0, err
		}
		if p.array != nil && n != 0 {
			if at, err = c.put(reply, at, within, c.array[i][:int(within)*int(p.array.size)]); err != nil {
				return 0, err
			}
		}
	}
	return at, nil
}

// put appends a count and its elements to the reply.
func (c *call) put(reply []byte, at int, n uint64, data []byte) (int, error) {
	padded := (len(data) + 7) &^ 7
	if at+8+padded > len(reply) {
		return 0, malformed(c.f.name, "the results need more than the %d bytes of a reply", len(reply))
	}
	binary.LittleEndian.PutUint64(reply[at:], n)
	copy(reply[at+8:], data)
	clear(reply[at+8+len(data) : at+8+padded])
	return at + 8 + padded, nil
}

// takeArray gives the elements that the call stored behind a structure, and takes our address out of it.
func (c *call) takeArray(i int, status nvml.NvmlReturn) uint64 {
	a := c.f.params[i].array
	if a == nil || len(c.buf[i]) < int(a.pointer)+8 {
		return 0
	}
	clear(c.buf[i][a.pointer : a.pointer+8])
	if status != nvml.NVML_SUCCESS {
		return 0
	}
	return min(c.within[i], uint64(binary.LittleEndian.Uint32(c.buf[i][a.count:])))
}

func word(b []byte) (uint64, []byte, bool) {
	if len(b) < 8 {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint64(b), b[8:], true
}
