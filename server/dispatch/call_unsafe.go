package dispatch

import (
	"unsafe"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/driver/invoke"
)

// plain carries out an operation whose parameters are words, without structures or pointers: most of those that the
// client does not wait for.
func (f *function) plain(
	op uint16, perThread bool, drv cuda.Driver, h Handles, r *codec.Reader, args *cuda.Words,
) cuda.CUresult {
	for i := range f.params {
		args[i] = r.U64()
	}
	if r.End() != nil {
		return 0
	}
	for i := range f.params {
		if result, ok := f.params[i].word(h, args[i], &args[i], perThread); !ok {
			return result
		}
	}
	return f.invoke(op, drv, h, args, perThread)
}

// word makes a value the driver's. It says whether there is such a thing; else the result is the call's answer.
func (p *param) word(h Handles, sent uint64, arg *uint64, perThread bool) (cuda.CUresult, bool) {
	switch {
	case p.handle != cuda.KindNone:
		v, ok := sent, sent == 0 // of 0, the driver knows what to say to it
		switch {
		case p.stream:
			v, ok = stream(h, sent, perThread)
		case !ok:
			v, ok = h.Real(p.handle, sent)
		}
		*arg = v
		return cuda.CUDA_ERROR_INVALID_HANDLE, ok
	case p.object != cuda.KindNone:
		*arg = sent
		return p.unknown, h.Holds(p.object, sent)
	}
	*arg = lowBytes(sent, p.size)
	if p.enum {
		*arg = codec.Enumerator(*arg)
	}
	return 0, true
}

// call is a call under way. Its steps go through the parameters in their order. A step may end the call, with a result
// (which may be CUDA_SUCCESS) or with an error of the reader's.
type call struct {
	*function
	h         Handles
	r         *codec.Reader
	w         *codec.Writer
	perThread bool

	word  [maxParams]uint64         // as the client sent it: a value, or how many elements there are
	at    [maxParams]unsafe.Pointer // of a pointer, and of a structure by value
	reply [maxParams]unsafe.Pointer // where the outcome of an input goes that is an output as well
}

func (c *call) carryOut(op uint16, drv cuda.Driver) cuda.CUresult {
	c.decode()
	if c.r.Err() != nil {
		return 0
	}
	if !c.admit() {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for i := range c.params {
		if result, ok := c.translate(i); !ok {
			return result
		}
	}
	if c.reserve(); c.r.Err() != nil {
		return 0
	}
	c.arguments()
	result := c.invoke(op, drv, c.h, &c.w.Args, c.perThread)
	if result != cuda.CUDA_SUCCESS && !c.outs {
		c.w.Reset()
		return result
	}
	return c.results(result)
}

// decode takes the request apart and compares the elements that are there with those that the driver will touch.
func (c *call) decode() {
	for i := range c.params {
		p := &c.params[i]
		switch p.dir {
		case dirValue:
			if p.value {
				c.at[i] = c.r.Struct(uint64(p.size))
				continue
			}
			c.word[i] = c.r.U64()
		case dirIn, dirInOut:
			c.at[i], c.word[i] = c.r.Array(uint64(p.size))
		case dirStr:
			c.at[i] = c.r.Str()
		case dirOut, dirRet, dirNew, dirOpaque:
			c.word[i] = c.r.U64()
		}
	}
	if c.r.End() != nil {
		return
	}
	for i := range c.params {
		switch c.params[i].dir {
		case dirIn, dirInOut, dirOut, dirRet:
			c.r.Need(c.word[i], c.touched(&c.params[i]))
		}
	}
}

// touched is the number of elements of a parameter that the driver will read or write.
func (c *call) touched(p *param) uint64 {
	if p.by == 0 {
		return uint64(p.count)
	}
	j := p.by - 1
	var n uint64
	switch of := &c.params[j]; {
	case of.dir != dirValue:
		n = count(c.at[j], uintptr(of.size))
	case of.size == 4:
		n = uint64(uint32(c.word[j]))
	default:
		n = c.word[j]
	}
	return n - min(n, uint64(p.less))
}

// admit finds what the server refuses for a driver that would take the bytes of an unknown union as they are, or follow
// NULL.
func (c *call) admit() bool {
	for i := range c.params {
		if s := c.params[i].record; s != nil && s.by != 0 && !known(s.known, c.word[s.by-1]) {
			return false
		}
	}
	for i := range c.params {
		if p := &c.params[i]; p.needed && c.word[i] == 0 && (p.by == 0 || c.touched(p) != 0) {
			return false
		}
	}
	for i := range c.params {
		if dir := c.params[i].dir; dir == dirIn || dir == dirInOut {
			c.word[i] = codec.Elements(c.word[i])
		}
	}
	return true
}

// translate makes a parameter the driver's: handles and numbers are looked up, and so is what a pointer leads to. It
// says whether the call goes on; else the result is its answer.
func (c *call) translate(i int) (cuda.CUresult, bool) {
	p := &c.params[i]
	switch p.dir {
	case dirNew:
		return cuda.CUDA_ERROR_INVALID_VALUE, c.word[i] != 0
	case dirValue:
		if p.value {
			return c.elements(i, 1)
		}
		return p.word(c.h, c.word[i], &c.w.Args[i], c.perThread)
	case dirIn, dirInOut:
		if p.handle != cuda.KindNone && !array(c.h, p.handle, c.at[i], c.word[i], c.perThread) {
			return cuda.CUDA_ERROR_INVALID_HANDLE, false
		}
		return c.elements(i, c.word[i])
	}
	return 0, true
}

// elements makes n tokens or structures the driver's: what those must not bring along is taken out or refused.
func (c *call) elements(i int, n uint64) (cuda.CUresult, bool) {
	p := &c.params[i]
	if p.token != cuda.KindNone && !meant(c.h, p.token, c.at[i], n) {
		return p.unknown, false
	}
	if p.enum {
		for j := range n {
			value := codec.Word32(c.at[i], uintptr(4*j))
			*value = int32(codec.Enumerator(uint64(uint32(*value))))
		}
	}
	s := p.record
	if s == nil {
		return 0, true
	}
	if refused(c.r, c.at[i], n, uint64(p.size), s.refuse) {
		return 0, false
	}
	if !patchIn(c.h, c.at[i], n, uint64(p.size), s.patches, c.selected(s), c.perThread) {
		return cuda.CUDA_ERROR_INVALID_HANDLE, false
	}
	result := checkWords(c.h, c.at[i], n, uint64(p.size), s.words, c.selected(s))
	return result, result == cuda.CUDA_SUCCESS
}

// selected is the value that says what a structure's union holds.
func (c *call) selected(s *record) int64 {
	if s.by == 0 {
		return 0
	}
	return int64(int32(c.word[s.by-1]))
}

// reserve makes room for the outputs in the reply.
func (c *call) reserve() {
	for i := range c.params {
		p := &c.params[i]
		switch p.dir {
		case dirOut, dirRet:
			c.at[i] = c.w.Out(c.r, c.word[i], uint64(p.size))
			c.word[i] = codec.Elements(c.word[i])
		case dirInOut:
			c.reply[i] = c.w.Out(c.r, c.word[i], uint64(p.size))
		}
	}
}

// arguments puts what was decoded into words.
func (c *call) arguments() {
	for i := range c.params {
		p := &c.params[i]
		arg := &c.w.Args[i]
		switch {
		case p.dir == dirNew:
			*arg = codec.Address(unsafe.Pointer(c.w.Word()))
		case p.dir == dirNull:
			*arg = 0
		case p.dir == dirValue && p.value && p.size > 8:
			*arg = codec.Address(c.at[i])
		case p.dir == dirValue && p.value:
			*arg = lowBytes(*codec.Word64(c.at[i], 0), p.size)
		case p.dir == dirValue: // since it was translated
		case p.dir == dirOpaque:
			*arg = c.word[i]
		default:
			*arg = codec.Address(c.at[i])
		}
	}
}

// lowBytes is a value without what lies above it in its word.
func lowBytes(v uint64, size uint16) uint64 {
	if size == 0 || size >= 8 {
		return v
	}
	return v & (1<<(8*size) - 1)
}

// invoke calls the driver with the words in args.
func (f *function) invoke(op uint16, drv cuda.Driver, h Handles, args *cuda.Words, perThread bool) cuda.CUresult {
	if !perThread || f.async == 0 {
		return invoke.CUDA(drv, op, args)
	}
	own := h.PerThread()
	args[len(f.params)] = own
	result := invoke.CUDA(drv, f.async, args)
	if result == cuda.CUDA_SUCCESS && f.waits {
		return drv.CuStreamSynchronize(cuda.CUstream(own))
	}
	return result
}

// results makes what the driver gave the client's, and keeps the account of its objects.
func (c *call) results(result cuda.CUresult) cuda.CUresult {
	for i := range c.params {
		p := &c.params[i]
		done := result == cuda.CUDA_SUCCESS
		switch {
		case p.deletes && p.object != cuda.KindNone:
			if done {
				c.h.Take(p.object, c.word[i])
			}
		case p.object != cuda.KindNone && p.dir == dirOut:
			given(c.h, p.object, c.at[i], c.word[i], c.parent(p))
		case p.deletes:
			if done {
				c.h.Delete(p.handle, c.word[i])
			}
		case p.dir == dirNew:
			if done {
				create(c.h, c.r, p.handle, c.word[i], c.w.Created(), c.parent(p))
			}
		}
		if !c.handOut(i) {
			c.w.Reset()
			return cuda.CUDA_ERROR_OUT_OF_MEMORY
		}
	}
	return result
}

// handOut makes the elements that the driver wrote the client's. It says whether there was room for their handles.
func (c *call) handOut(i int) bool {
	p := &c.params[i]
	at, n, size := c.at[i], c.word[i], uint64(p.size)
	switch p.dir {
	case dirRet:
		return returned(c.h, p.handle, at, n, c.parent(p))
	case dirInOut:
		codec.Copy(c.reply[i], at, n, size)
		at = c.reply[i]
	case dirOut:
		if p.token != cuda.KindNone && !hidden(c.h, p.token, at, n) {
			return false
		}
	default:
		return true
	}
	s := p.record
	return s == nil || patchOut(c.h, at, n, size, s.patches, c.selected(s), c.parent(p))
}

// parent is the client's handle under which the table enters what the call brings forth.
func (c *call) parent(p *param) uint64 {
	if p.parent == 0 {
		return 0
	}
	return c.word[p.parent-1]
}
