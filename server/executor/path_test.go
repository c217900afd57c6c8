package executor

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// paced is a GPU whose events are complete when it says so, and which counts the uploads out of registered memory and
// out of other memory.
type paced struct {
	cuda.GPU
	complete    func(e recorded) bool
	events      map[cuda.CUevent]recorded
	from, to    uintptr
	slots, rest int
}

type recorded struct {
	uploads int // before it
	asked   int
}

func (p *paced) CuMemHostRegister_v2(mem unsafe.Pointer, bytes uint64, flags uint32) cuda.CUresult {
	p.from, p.to = uintptr(mem), uintptr(mem)+uintptr(bytes)
	return p.GPU.CuMemHostRegister_v2(mem, bytes, flags)
}

func (p *paced) CuMemcpyHtoDAsync_v2(
	dst cuda.CUdeviceptr, src unsafe.Pointer, bytes uint64, st cuda.CUstream,
) cuda.CUresult {
	if at := uintptr(src); at >= p.from && at < p.to {
		p.slots++
	} else {
		p.rest++
	}
	return p.GPU.CuMemcpyHtoDAsync_v2(dst, src, bytes, st)
}

func (p *paced) CuEventRecord(e cuda.CUevent, st cuda.CUstream) cuda.CUresult {
	p.events[e] = recorded{uploads: p.slots + p.rest}
	return p.GPU.CuEventRecord(e, st)
}

func (p *paced) CuEventQuery(e cuda.CUevent) cuda.CUresult {
	r := p.events[e]
	r.asked++
	if p.events[e] = r; !p.complete(r) {
		return cuda.CUDA_ERROR_NOT_READY
	}
	return p.GPU.CuEventQuery(e)
}

// Chunks stay in the slots in which they came while the GPU reads one after the other. Where it stands still they make
// room for others, and the commands behind the copy go on.
func TestChunksLeaveTheirSlots(t *testing.T) {
	const chunks, slots = 40, 12
	for _, tt := range []struct {
		name     string
		unread   time.Duration
		complete func(p *paced, e recorded) bool
		right    func(moved int) bool
	}{
		{"a GPU that goes on", time.Hour, func(_ *paced, e recorded) bool {
			return e.asked > 8
		}, func(moved int) bool { return moved == 0 }},
		{"a GPU that stands still until an upload has come", unread, func(p *paced, e recorded) bool {
			return p.slots+p.rest >= (e.uploads+chunks-1)/chunks*chunks
		}, func(moved int) bool { return moved >= chunks-slots }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer func(d time.Duration) { unread = d }(unread)
			unread = tt.unread
			p := &paced{GPU: openSim(t), events: make(map[cuda.CUevent]recorded)}
			p.complete = func(e recorded) bool { return tt.complete(p, e) }
			const rounds = 1 // and one before
			if _, err := measureStaging(p, chunks*largeBytes, slots, 0, rounds); err != nil {
				t.Fatal(err)
			}
			if p.slots+p.rest != (rounds+1)*chunks || !tt.right(p.rest/(rounds+1)) {
				t.Errorf("%d chunks went to the GPU out of their slots, and %d out of others", p.slots, p.rest)
			}
		})
	}
}
