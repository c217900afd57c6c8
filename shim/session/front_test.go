package session

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

// front plays the part of the C front: it owns the ring and appends commands to it.
type front struct {
	t      testing.TB
	shared *Shared
	ring   []byte
	mu     sync.Mutex
}

func newFront(t testing.TB, size int) *front {
	t.Helper()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(2*size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := unix.MmapPtr(fd, 0, unsafe.Add(base, i*size), uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if !t.Failed() { // else somebody may still be in it, whose crash would hide why
			_ = unix.MunmapPtr(base, uintptr(2*size))
		}
	})
	f := &front{t: t, ring: unsafe.Slice((*byte)(base), 2*size)}
	f.shared = &Shared{
		ABI: ABI, Ring: (*byte)(base), RingSize: uint64(size), ClientBase: 0x1000, ClientSlots: 64, ServerBase: 0x9000,
		ServerSlots: 64,
	}
	return f
}

// publish appends a command and gives its end. It waits for room as the front does.
func (f *front) publish(op uint16, flags transport.CommandFlags, thread uint32, payload []byte) uint64 {
	return f.publishIn(0, op, flags, thread, payload)
}

// publishIn does so in a context.
func (f *front) publishIn(
	context uint64, op uint16, flags transport.CommandFlags, thread uint32, payload []byte,
) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	size := uint64(transport.CommandHeaderSize + transport.Pad(len(payload)))
	tail := f.shared.Tail
	for tail+size-atomic.LoadUint64(&f.shared.Head) > f.shared.RingSize {
		if atomic.LoadUint32(&f.shared.Lost) != 0 {
			return tail
		}
		atomic.StoreUint32(&f.shared.Starved, 1)
		if tail+size-atomic.LoadUint64(&f.shared.Head) > f.shared.RingSize && atomic.LoadUint32(&f.shared.Lost) == 0 {
			f.wakeSender()
			futexWait(&f.shared.Starved, 1, 0)
		}
	}
	h := transport.CommandHeader{Size: uint32(size), Op: op, Flags: flags, Seq: tail, Context: context, Thread: thread}
	at := tail & (f.shared.RingSize - 1)
	b := h.Append(f.ring[at:at:len(f.ring)])
	clear(append(b, payload...)[len(b)+len(payload) : size])
	atomic.StoreUint64(&f.shared.Tail, tail+size)
	return tail + size
}

func (f *front) wakeSender() {
	if atomic.CompareAndSwapUint32(&f.shared.Asleep, 1, 0) {
		futexWake(&f.shared.Asleep)
	}
}

// async publishes a command that nobody waits for.
func (f *front) async(op uint16, thread uint32, payload []byte) {
	f.publish(op, 0, thread, payload)
	f.wakeSender()
}

// call makes a synchronous call. thread names the server as well.
func (f *front) call(s *Session, op uint16, thread uint32, payload, reply []byte) (int32, uint32) {
	end := f.publish(op, transport.FlagAnswer, thread, payload)
	size := uint64(transport.CommandHeaderSize + transport.Pad(len(payload)))
	c := Call{Begin: end - size, End: end, Thread: thread & (1<<serverShift - 1), Reply: reply}
	s.Call(&c)
	return c.Result, c.Length
}

func (f *front) lost() int32 { return int32(atomic.LoadUint32(&f.shared.Lost)) }

func u64(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}
