package timeline

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrPart is a file that no process of a program has written.
var ErrPart = errors.New("not the timeline of a process")

// Layouts of shim/front/base/events.h.
const (
	magic      = "scudaTL1"
	headBytes  = 4096
	programAt  = 64
	programMax = 512
	blockHead  = 32
	eventHead  = 8

	mostProcesses = 1 << 22 // Linux gives no higher numbers
)

// Kinds of events.
const (
	eventName = 1 + iota
	eventCall
	eventWait
	eventRead
	eventControl
	eventTraffic
	eventRuntime
)
const (
	eventPush = 16 + iota
	eventPop
	eventStart
	eventEnd
	eventMark
	eventDomain
	eventCategory
	eventThread
)

// Part is what one library of one process has written. Times are the client's CLOCK_MONOTONIC, in ns.
type Part struct {
	PID         uint32
	Program     string
	Began, Real int64 // the file's beginning by CLOCK_MONOTONIC, and by CLOCK_REALTIME
	Ended       int64 // 0: the process did not end in order, or its library does not say
	Lost        uint64

	functions  map[uint32]string
	threads    map[uint32]string // by the kernel's name, or what NVTX was told
	calls      []Call
	runtime    []Call
	waits      []Wait
	answers    []answer
	traffic    []Traffic
	ranges     []rangeEvent
	domains    map[uint32]string
	categories map[[2]uint32]string
}

// Call is a call of the driver by the program, or of CUDA's runtime.
type Call struct {
	Name         string
	Thread       uint32
	Began, Ended int64
	Correlation  uint32
	Result       int32

	function uint32
	stream   uint32 // that it waited for; allStreams: for those of its context
	context  uint32
}

const allStreams = 1<<32 - 1

// Wait is what a thread stood still for within a call.
type Wait struct {
	Thread       uint32
	Why          Why
	Op           uint16
	Began, Ended int64
	Bytes        uint64
}

// Why is what a thread waited for.
type Why uint32

// They are the front's SCUDA_COUNT_...
const (
	WaitAnswer Why = 1 + iota
	WaitData
	WaitQueue
	WaitModule
	WaitConnect // which no count has
)

func (w Why) String() string {
	switch w {
	case WaitAnswer:
		return "answer"
	case WaitData:
		return "bytes"
	case WaitQueue:
		return "room in the queue"
	case WaitModule:
		return "upload of a module"
	case WaitConnect:
		return "connection to the server"
	}
	return fmt.Sprintf("wait %d", uint32(w))
}

// answer is what a server said to a question, or that it records something else from now on.
type answer struct {
	of              uint16 // the server's number, in the order of SCUDA_SERVER
	asked, answered int64
	payload         []byte // of a question for records
	control         bool
	kept            uint32
	server          int64 // its clock, of a control
}

// Traffic is bytes of the protocol until then.
type Traffic struct {
	Time                             int64
	Sent, Received, SentR, ReceivedR uint64 // by TCP, by RDMA
}

// rangeEvent is what a program said by NVTX.
type rangeEvent struct {
	kind             uint16
	thread           uint32
	domain, category uint32
	time             int64
	id               uint64
	color            uint32
	payloadType      uint32
	payload          uint64
	text             string
}

// Read reads the file of a process, also of one that was killed while it wrote.
func Read(b []byte) (*Part, error) {
	if len(b) < headBytes || string(b[:len(magic)]) != magic {
		return nil, ErrPart
	}
	le := binary.LittleEndian
	size := uint64(le.Uint32(b[8:]))
	if size < blockHead || size%8 != 0 || size > 1<<30 {
		return nil, fmt.Errorf("%w: blocks of %d bytes", ErrPart, size)
	}
	p := &Part{
		PID: le.Uint32(b[12:]), Began: int64(le.Uint64(b[16:])), Real: int64(le.Uint64(b[24:])),
		Lost: le.Uint64(b[48:]), Ended: int64(le.Uint64(b[56:])),
		functions: map[uint32]string{}, threads: map[uint32]string{}, domains: map[uint32]string{},
		categories: map[[2]uint32]string{},
	}
	if p.PID >= mostProcesses {
		return nil, fmt.Errorf("%w: process %d", ErrPart, p.PID)
	}
	p.Program = text(b[programAt : programAt+programMax])
	for at := uint64(headBytes); at+blockHead <= uint64(len(b)); {
		used := uint64(le.Uint32(b[at+4:]))
		blocks := max((used+size-1)/size, 1)
		if used >= blockHead && at+used <= uint64(len(b)) {
			if err := p.block(b[at : at+used]); err != nil {
				return nil, err
			}
		}
		at += blocks * size
	}
	for _, list := range [][]Call{p.calls, p.runtime} {
		for i := range list {
			list[i].Name = p.functions[list[i].function]
		}
	}
	return p, nil
}

func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(bytes.ToValidUTF8(s, []byte("?")))
}

// block takes in what one thread has written.
func (p *Part) block(b []byte) error {
	le := binary.LittleEndian
	thread := le.Uint32(b)
	if _, known := p.threads[thread]; !known {
		p.threads[thread] = text(b[8:24])
	}
	for b = b[blockHead:]; len(b) > 0; {
		if len(b) < eventHead {
			return fmt.Errorf("%w: a short event", ErrPart)
		}
		n := uint64(le.Uint32(b))
		if n < eventHead || n%8 != 0 || n > uint64(len(b)) {
			return fmt.Errorf("%w: an event of %d bytes, %d are left", ErrPart, n, len(b))
		}
		if err := p.event(thread, le.Uint16(b[4:]), le.Uint16(b[6:]), b[eventHead:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// sizes are the bytes of events behind their heads, without what may follow.
var sizes = map[uint16]int{
	eventName: 8, eventCall: 40, eventWait: 32, eventRead: 24, eventControl: 32, eventTraffic: 40, eventRuntime: 40,
	eventPush: 40, eventPop: 40, eventStart: 40, eventEnd: 40, eventMark: 40, eventDomain: 8, eventCategory: 8,
	eventThread: 8,
}

func (p *Part) event(thread uint32, kind, server uint16, b []byte) error {
	size, known := sizes[kind]
	if !known {
		return nil // of a later release
	}
	if len(b) < size {
		return fmt.Errorf("%w: an event of kind %d with %d bytes", ErrPart, kind, len(b))
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	at := func(i int) int64 { return int64(u64(i)) }
	rest := b[size:]
	switch kind {
	case eventName:
		p.functions[u32(0)] = text(rest)
	case eventCall:
		p.calls = append(p.calls, Call{Thread: thread, function: u32(0), Correlation: u32(4), Began: at(8),
			Ended: max(at(16), at(8)), Result: int32(u32(24)), stream: u32(28), context: u32(32)})
	case eventRuntime:
		p.runtime = append(p.runtime, Call{Thread: thread, function: u32(0), Began: at(8), Ended: max(at(16), at(8)),
			Result: int32(u32(24))})
	case eventWait:
		p.waits = append(p.waits, Wait{Thread: thread, Why: Why(u32(0)), Op: uint16(u32(4)), Began: at(8),
			Ended: max(at(16), at(8)), Bytes: u64(24)})
	case eventRead:
		length := int(u32(0))
		if length > len(rest) {
			return fmt.Errorf("%w: an answer of %d bytes in %d", ErrPart, length, len(rest))
		}
		p.answers = append(p.answers, answer{of: server, asked: at(8), answered: at(16), payload: rest[:length]})
	case eventControl:
		p.answers = append(p.answers, answer{of: server, asked: at(8), answered: at(16), control: true, kept: u32(4),
			server: at(24)})
	case eventTraffic:
		p.traffic = append(p.traffic, Traffic{at(0), u64(8), u64(16), u64(24), u64(32)})
	case eventDomain:
		p.domains[u32(0)] = text(rest)
	case eventCategory:
		p.categories[[2]uint32{u32(0), u32(4)}] = text(rest)
	case eventThread:
		p.threads[u32(4)] = text(rest)
	default:
		p.ranges = append(p.ranges, rangeEvent{kind: kind, thread: thread, domain: u32(0), category: u32(4), time: at(8),
			id: u64(16), color: u32(24), payloadType: u32(28), payload: u64(32), text: text(rest)})
	}
	return nil
}
