package timeline

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = 1024

// file is a part as the client's libraries write it.
type file struct {
	b []byte
}

func newFile(pid uint32, program string, began, ended int64) *file {
	f := &file{b: make([]byte, headBytes)}
	le := binary.LittleEndian
	copy(f.b, magic)
	le.PutUint32(f.b[8:], blockSize)
	le.PutUint32(f.b[12:], pid)
	le.PutUint64(f.b[16:], uint64(began))
	le.PutUint64(f.b[56:], uint64(ended))
	copy(f.b[programAt:], program)
	return f
}

// block adds a block with events, or several in a row where it needs them.
func (f *file) block(thread uint32, name string, events ...[]byte) {
	head := make([]byte, blockHead)
	copy(head[8:24], name)
	b := slices.Concat(append([][]byte{head}, events...)...)
	binary.LittleEndian.PutUint32(b, thread)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	for len(b)%blockSize != 0 {
		b = append(b, 0)
	}
	f.b = append(f.b, b...)
}

// event packs numbers of 32 and 64 bits and texts.
func event(kind uint16, fields ...any) []byte {
	var b []byte
	b = append(b, make([]byte, eventHead)...)
	for _, x := range fields {
		switch x := x.(type) {
		case int:
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		case int64:
			b = binary.LittleEndian.AppendUint64(b, uint64(x))
		case string:
			b = append(b, x...)
		case []byte:
			b = append(b, x...)
		}
	}
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint16(b[4:], kind)
	return b
}

// from says that a server's answer is in an event.
func from(server uint16, event []byte) []byte {
	binary.LittleEndian.PutUint16(event[6:], server)
	return event
}

func callEvent(function, correlation int, began, ended int64, stream, context int) []byte {
	return event(eventCall, function, correlation, began, ended, 0, stream, context, 0)
}

func waitEvent(why Why, op uint16, began, ended, n int64) []byte {
	return event(eventWait, int(why), int(op), began, ended, n)
}

func rangeOf(kind uint16, domain int, at, id int64, name string) []byte {
	return event(kind, domain, 0, at, id, 0, 0, int64(0), name)
}

// read is an answer of the server with records.
func read(asked, answered, now int64, names []string, records ...wire.ProfileRecord) []byte {
	head := wire.ProfileRecords{Now: uint64(now), Names: uint32(len(names)), Records: uint32(len(records))}
	payload := wire.Bytes(&head)
	for i, name := range names {
		payload = append(payload, wire.Bytes(&wire.ProfileName{ID: uint32(i + 1), Bytes: uint32(len(name))})...)
		payload = append(payload, name...)
		for len(payload)%8 != 0 {
			payload = append(payload, 0)
		}
	}
	for i := range records {
		payload = append(payload, wire.Bytes(&records[i])...)
	}
	return event(eventRead, len(payload), 0, asked, answered, payload)
}

// The server's clock in these tests is ahead by so much.
const ahead = int64(1e12)

// sample is a program with two threads and two streams. Times are in µs of the client's clock; the server says of the
// first kernel that it began before its launch, and of the last that it ended after the wait for it.
func sample() *file {
	f := newFile(77, "python3 train.py", 0, 1000e3)
	record := func(kind, correlation, stream uint32, from, to int64) wire.ProfileRecord {
		return wire.ProfileRecord{Kind: kind, Correlation: correlation, Start: uint64(from*1e3 + ahead),
			End: uint64(to*1e3 + ahead), Device: 0, Context: 1, Stream: stream}
	}
	kernel := func(correlation, stream uint32, from, to int64) wire.ProfileRecord {
		r := record(wire.ProfileKernels, correlation, stream, from, to)
		r.Name, r.Grid, r.Block = 1, [3]uint32{2, 1, 1}, [3]uint32{128, 1, 1}
		return r
	}
	command := func(kind, correlation uint32, op uint16, from, to int64) wire.ProfileRecord {
		r := record(kind, correlation, 0, from, to)
		r.Value = uint32(op)
		return r
	}
	upload := record(wire.ProfileCopies, 13, 8, 420, 500)
	upload.Bytes, upload.Source, upload.Target = 4096, wire.ProfileMemoryPinned, wire.ProfileMemoryDevice
	first := kernel(11, 7, 100, 150)
	first.Start -= 5e3 // of which 4 µs are before its launch
	last := kernel(12, 7, 250, 301)
	f.block(77, "python3", event(eventName, 1, 0, "cuLaunchKernel"), event(eventName, 2, 0, "cuStreamSynchronize"),
		event(eventName, 3, 0, "cuMemcpyHtoD_v2"),
		callEvent(1, 11, 99e3, 101e3, 0, 0), callEvent(1, 12, 200e3, 202e3, 0, 0),
		event(eventName, 1<<16+211, 0, "cudaLaunchKernel"),
		event(eventRuntime, 1<<16+211, 0, int64(98e3), int64(102e3), 1, 0, 0, 0),
		waitEvent(WaitAnswer, cuda.OpCuStreamSynchronize, 206e3, 300e3, 0), callEvent(2, 14, 205e3, 300e3, 7, 0),
		event(eventTraffic, int64(0), int64(0), int64(0), int64(0), int64(0)),
		event(eventTraffic, int64(500e3), int64(5000), int64(700), int64(0), int64(0)))
	f.block(78, "worker", waitEvent(WaitData, wire.OpCopyH2D, 401e3, 510e3, 4096), callEvent(3, 13, 400e3, 511e3, 0, 0))
	f.block(79, "", // the thread of the timeline; its own waits are no one's
		waitEvent(WaitAnswer, wire.OpProfileRead, 0, 1e3, 0),
		event(eventControl, 775, 775, int64(0), int64(2e3), int64(1e3)+ahead),
		read(600e3, 602e3, 601e3+ahead, []string{"add"}, first, last, upload,
			command(wire.ProfileCommands, 11, wire.OpLaunch, 99, 100),
			command(wire.ProfileCommands, 12, wire.OpLaunch, 210, 211),
			command(wire.ProfileTurns, 12, wire.OpLaunch, 210, 230),
			command(wire.ProfileCommands, 14, cuda.OpCuStreamSynchronize, 212, 213),
			command(wire.ProfileCommands, 13, wire.OpCopyH2D, 410, 412)))
	return f
}

func nvtxSample() *file {
	f := newFile(77, "python3 train.py", 10e3, 0)
	f.block(77, "python3", event(eventDomain, 3, 0, "steps"), event(eventCategory, 3, 7, "io"),
		event(eventThread, 0, 78, "loader"), rangeOf(eventPush, 0, 20e3, 0, "step"),
		event(eventPush, 3, 7, int64(30e3), int64(0), 0x3366cc, 2, int64(-5), "inner"), rangeOf(eventPop, 3, 40e3, 0, ""),
		rangeOf(eventPop, 0, 50e3, 0, ""), rangeOf(eventPop, 0, 51e3, 0, ""), // one too many
		rangeOf(eventMark, 0, 60e3, 0, "here"), rangeOf(eventStart, 0, 70e3, 5, "across"))
	f.block(78, "worker", rangeOf(eventEnd, 0, 90e3, 5, ""), rangeOf(eventPush, 0, 95e3, 0, "never popped"))
	return f
}

func build(t *testing.T, files ...*file) *Timeline {
	t.Helper()
	var parts []*Part
	for _, f := range files {
		p, err := Read(f.b)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	return Build(parts)
}

// TestReadWhatIsThere: of a file that ends in the middle, or whose blocks were given out and not written, everything
// else is read.
func TestReadWhatIsThere(t *testing.T) {
	f := newFile(5, "x", 1, 0)
	f.block(9, "first", event(eventName, 1, 0, "cuInit"), callEvent(1, 2, 3, 4, 0, 0))
	f.b = append(f.b, make([]byte, blockSize)...) // given out, not written
	f.block(9, "first", event(99, 1, 2),
		event(eventRead, blockSize, 0, int64(5), int64(6), bytes.Repeat([]byte{1}, blockSize)))
	f.block(10, "second", callEvent(1, 3, 7, 8, 0, 0))
	whole := slices.Clone(f.b)
	p, err := Read(whole)
	if err != nil || len(p.calls) != 2 || p.calls[1].Name != "cuInit" || len(p.answers) != 1 || p.threads[10] != "second" {
		t.Fatalf("%v, %+v", err, p)
	}
	for n := range whole {
		if _, err := Read(whole[:n]); err != nil && !errors.Is(err, ErrPart) {
			t.Fatalf("of %d bytes: %v", n, err)
		}
	}
	if p, err = Read(whole[:len(whole)-blockSize]); err != nil || len(p.calls) != 1 {
		t.Errorf("without the last block: %v, %+v", err, p)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(sample().b)
	f.Add(nvtxSample().b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(b)
		if err != nil {
			if !errors.Is(err, ErrPart) {
				t.Fatal(err)
			}
			return
		}
		line := Build([]*Part{p, p})
		for _, g := range line.GPUs {
			sum := g.BusyTime()
			for _, s := range g.Causes() {
				sum += s.Time
			}
			if sum != g.Time() {
				t.Errorf("busy and idle are %v of %v", sum, g.Time())
			}
		}
		if err := line.Chrome(&bytes.Buffer{}); err != nil {
			t.Error(err)
		}
		if err := line.HTML(&bytes.Buffer{}); err != nil {
			t.Error(err)
		}
	})
}
