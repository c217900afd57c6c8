package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const opEcho, opNote = 7, 8

// echo answers every call with its payload.
func echo(p *peer, h transport.CommandHeader, payload, bulk []byte) {
	if h.Flags&transport.FlagAnswer != 0 {
		p.reply(h, int32(h.Op), payload)
	}
}

func TestHello(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = echo
	s, _ := p.open(f, nil)
	f.call(s, opEcho, 0, nil, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.hello; h.Kind != transport.KindCUDA || h.ClientBase != 0x1000 || h.ServerSlots != 64 {
		t.Errorf("hello %+v", h)
	}
}

func TestCallsFromManyThreads(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<14) // a small ring: threads wait for room
	p.command = echo
	s, text := p.open(f, nil)
	const threads, calls = 16, 200
	within(t, func() {
		var wg sync.WaitGroup
		for i := range uint32(threads) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				reply := make([]byte, 4096)
				for range calls {
					for range r.IntN(4) {
						f.async(opNote, i, make([]byte, r.IntN(600)))
					}
					payload := make([]byte, 8*r.IntN(500))
					for k := range payload {
						payload[k] = byte(r.Uint32())
					}
					result, n := f.call(s, opEcho, i, payload, reply)
					if result != opEcho || int(n) != len(payload) || !bytes.Equal(reply[:n], payload) {
						t.Errorf("thread %d: result %d with %d bytes, expected %d; %s", i, result, n, len(payload), text)
						return
					}
				}
			})
		}
		wg.Wait()
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.IsSorted(p.seqs) {
		t.Error("commands arrived out of order")
	}
	if n := len(slices.DeleteFunc(slices.Clone(p.ops), func(op uint16) bool { return op != opEcho })); n != threads*calls {
		t.Errorf("%d calls arrived, expected %d", n, threads*calls)
	}
}

func TestReplyLongerThanItsBuffer(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = echo
	s, _ := p.open(f, nil)
	for _, size := range []int{0, 8, 16, 40000} {
		reply := make([]byte, 12)
		guard := reply[8:12:12]
		result, n := f.call(s, opEcho, 3, bytes.Repeat([]byte{0xab}, size), reply[:8:8])
		if result != opEcho || int(n) != size || !bytes.Equal(guard, make([]byte, 4)) {
			t.Errorf("%d bytes: result %d, length %d, guard %x", size, result, n, guard)
		}
	}
}

func TestAsyncCommandsArriveWithoutACall(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	got := make(chan uint16, 1000)
	p.command = func(_ *peer, h transport.CommandHeader, _, _ []byte) { got <- h.Op }
	p.open(f, nil)
	within(t, func() {
		for i := range uint16(500) {
			f.async(100+i, 0, nil)
			if i%50 == 0 { // let the sender go to sleep now and then
				for range i / 50 * 4 {
					schedYield()
				}
			}
		}
		for i := range uint16(500) {
			if op := <-got; op != 100+i {
				t.Errorf("command %d, expected %d", op, 100+i)
			}
		}
	})
}

// bulkCall makes a call of a BULK command with data.
func (f *front) bulkCall(s *Session, thread uint32, data []byte) int32 {
	end := f.publish(opNote, transport.FlagBulk, thread, u64(uint64(thread), uint64(len(data))))
	return s.Bulk(end, data)
}

func TestBulkWhileRepliesArePending(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<14)
	var mu sync.Mutex // guards both maps
	sums, want := make(map[uint32]uint64), make(map[uint32]uint64)
	p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
		mu.Lock()
		sums[h.Thread] += uint64(crc32.ChecksumIEEE(bulk))
		mu.Unlock()
		if h.Flags&transport.FlagAnswer != 0 { // a long answer that the client has to take while it uploads
			p.reply(h, 0, make([]byte, 300_000))
		}
	}
	s, text := p.open(f, nil)
	within(t, func() {
		var wg sync.WaitGroup
		for i := range uint32(8) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(2, uint64(i)))
				data, noise := make([]byte, 1_000_003), some(2_000_003, byte(i))
				var sum uint64
				for range 10 {
					n := r.IntN(len(data))
					copy(data, noise[n:])
					sum += uint64(crc32.ChecksumIEEE(data[:n]))
					if r := f.bulkCall(s, i, data[:n]); r != 0 {
						t.Errorf("bulk: %d; %s", r, text)
					}
					clear(data) // free for reuse by contract
					f.async(opNote, i, nil)
					if r, _ := f.call(s, opEcho, i, nil, nil); r != 0 {
						t.Errorf("call: %d", r)
					}
				}
				mu.Lock()
				want[i] = sum
				mu.Unlock()
			})
		}
		wg.Wait()
	})
	mu.Lock()
	defer mu.Unlock()
	for i, sum := range want {
		if sums[i] != sum {
			t.Errorf("thread %d: checksum %d arrived, expected %d", i, sums[i], sum)
		}
	}
}

// A server that does not read on before the client has taken its answers must not stop the client for ever.
func TestSlowServerDoesNotDeadlock(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	const answers, size = 40, 1 << 20
	p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
		if h.Op == opEcho {
			id := binary.LittleEndian.Uint32(payload)
			for i := range answers {
				p.say(transport.MessageHeader{Type: transport.MsgData, ID: id, Aux: uint64(i * size)},
					bytes.Repeat([]byte{byte(i)}, size))
			}
			p.say(transport.MessageHeader{Type: transport.MsgDone, ID: id}, nil)
		}
		if h.Flags&transport.FlagAnswer != 0 {
			p.reply(h, 0, nil)
		}
	}
	s, _ := p.open(f, nil)
	dst := make([]byte, answers*size)
	within(t, func() {
		id := s.Transfer(dst, 0, TransferAsync)
		f.async(opEcho, 0, u64(uint64(id)))
		for range 20 { // far more than the sockets hold
			if r := f.bulkCall(s, 0, make([]byte, 4<<20)); r != 0 {
				t.Fatalf("bulk: %d", r)
			}
		}
		if r, _ := f.call(s, opNote, 0, nil, nil); r != 0 {
			t.Fatalf("call: %d", r)
		}
	})
	for i := range answers {
		if c := dst[(i+1)*size-1]; c != byte(i) {
			t.Fatalf("block %d holds %d", i, c)
		}
	}
	if n := atomic.LoadUint32(&f.shared.TransfersPending); n != 0 {
		t.Errorf("%d transfers pending", n)
	}
}

func TestDownloads(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
		id, n := uint32(binary.LittleEndian.Uint64(payload)), int(binary.LittleEndian.Uint64(payload[8:]))
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7)
		}
		for at := 0; at < n; at += 100_001 {
			end := min(n, at+100_001)
			p.say(transport.MessageHeader{Type: transport.MsgData, ID: id, Aux: uint64(at)}, data[at:end])
		}
		if h.Flags&transport.FlagAnswer != 0 {
			p.reply(h, 0, nil)
		} else {
			p.say(transport.MessageHeader{Type: transport.MsgDone, ID: id}, nil)
		}
	}
	s, _ := p.open(f, nil)
	check := func(dst []byte) {
		t.Helper()
		for i := range dst {
			if dst[i] != byte(i*7) {
				t.Fatalf("%d bytes: byte %d is %d", len(dst), i, dst[i])
			}
		}
	}
	within(t, func() {
		for _, n := range []int{1, 4, 4095, 32 << 10, 100_001, 3_000_000} {
			dst := make([]byte, n)
			id := s.Transfer(dst, 5, TransferSync)
			if r, _ := f.call(s, opEcho, 5, u64(uint64(id), uint64(n)), nil); r != 0 {
				t.Fatalf("result %d", r)
			}
			check(dst)
		}
		// Asynchronous ones complete though nobody calls: the background reader does it.
		var all [][]byte
		for _, n := range []int{1, 70_000, 3_000_000} {
			dst := make([]byte, n)
			all = append(all, dst)
			if s.Overlaps(dst) {
				t.Fatal("overlap before there is a transfer")
			}
			id := s.Transfer(dst, 5, TransferAsync)
			if !s.Overlaps(dst[n-1:]) || s.Overlaps(make([]byte, 9)) {
				t.Fatal("Overlaps is wrong")
			}
			f.async(opEcho, 5, u64(uint64(id), uint64(n)))
		}
		for atomic.LoadUint32(&f.shared.TransfersPending) != 0 {
			schedYield()
		}
		for _, dst := range all {
			check(dst)
			if s.Overlaps(dst) {
				t.Error("a completed transfer overlaps")
			}
		}
	})
}

// The sender may have sent a command, and the reply may be there, before its thread comes to wait for it.
func TestReplyBeforeTheCall(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = echo
	s, _ := p.open(f, nil)
	within(t, func() {
		end := f.publish(opEcho, transport.FlagAnswer, 9, u64(42))
		f.wakeSender()
		if r, _ := f.call(s, opEcho, 1, nil, nil); r != opEcho { // thread 1 reads thread 9's reply on its way
			t.Fatalf("result %d", r)
		}
		c := Call{End: end, Thread: 9, Reply: make([]byte, 8)}
		s.Call(&c)
		if c.Result != opEcho || c.Length != 8 || binary.LittleEndian.Uint64(c.Reply) != 42 {
			t.Errorf("result %d, %d bytes, %v", c.Result, c.Length, c.Reply)
		}
	})
}

// TestTimedCall: whoever wants to know is told when the reply came, which others are not.
func TestTimedCall(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	var answered atomic.Int64
	p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
		answered.Store(monotonic())
		echo(p, h, payload, bulk)
	}
	s, _ := p.open(f, nil)
	within(t, func() {
		for i := range 4 {
			end := f.publish(opEcho, transport.FlagAnswer, 1, nil)
			c := Call{Begin: end - transport.CommandHeaderSize, End: end, Thread: 1, Timed: i%2 == 0}
			s.Call(&c)
			if now := monotonic(); i%2 == 0 && (c.Came < answered.Load() || c.Came > now) {
				t.Errorf("it came at %d, the server answered at %d, now it is %d", c.Came, answered.Load(), now)
			}
		}
	})
}

func TestHostFunctions(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	type run struct {
		f      HostFunction
		status int32
	}
	var mu sync.Mutex
	var runs []run
	s, text := p.open(f, func(f HostFunction, status int32) {
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, run{f, status})
	})
	once := s.HostFunction(HostFunction{Func: 1, User: 10})
	callback := s.HostFunction(HostFunction{Func: 2, User: 20, Stream: 0x77, Kind: 1})
	captured := s.HostFunction(HostFunction{Func: 3, Keep: true})
	if !s.Overlaps([]byte{1}) {
		t.Error("a pending host function may write anywhere")
	}
	within(t, func() {
		for i, c := range []struct {
			registration uint64
			status       int32
		}{{once, 0}, {callback, 700}, {captured, 0}, {captured, 0}} {
			h, _ := p.ask(transport.MessageHeader{Type: transport.MsgRun, ID: 5, Seq: uint64(i), Aux: c.registration,
				Result: c.status})
			if h.Type != transport.MsgRan || h.Seq != uint64(i) || h.Result != Success {
				t.Errorf("run %d: %+v", i, h)
			}
		}
	})
	mu.Lock()
	defer mu.Unlock()
	want := []run{{HostFunction{Func: 1, User: 10}, 0}, {HostFunction{Func: 2, User: 20, Stream: 0x77, Kind: 1}, 700},
		{HostFunction{Func: 3, Keep: true}, 0}, {HostFunction{Func: 3, Keep: true}, 0}}
	if !slices.Equal(runs, want) {
		t.Errorf("ran %+v", runs)
	}
	if !s.Overlaps([]byte{1}) {
		t.Error("a captured host function may run again")
	}
	if text.String() != "" {
		t.Errorf("log: %s", text)
	}
}

func TestPull(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, _ := p.open(f, nil)
	src := make([]byte, 3*transport.PullUnit/2)
	for i := range src {
		src[i] = byte(i / 1000)
	}
	id := s.Source(src, false)
	within(t, func() {
		for _, c := range []struct {
			name    string
			id      uint32
			unit, n int
			last    bool
		}{
			{"whole", id, 0, len(src), false},
			{"second part", id, 1, transport.PullUnit / 2, false},
			{"odd size", id, 0, 13, false},
			{"last", id, 1, 1, true},
		} {
			m := transport.MessageHeader{Type: transport.MsgPull, ID: c.id, Seq: 99, Result: int32(c.unit), Aux: uint64(c.n)}
			if c.last {
				m.Aux |= transport.LastPull
			}
			h, data := p.ask(m)
			if h.Type != transport.MsgPulled || h.Seq != 99 || h.Result != Success {
				t.Errorf("%s: %+v", c.name, h)
			}
			if at := c.unit * transport.PullUnit; !bytes.Equal(data, src[at:at+c.n]) {
				t.Errorf("%s: wrong bytes", c.name)
			}
		}
		h, _ := p.ask(transport.MessageHeader{Type: transport.MsgPing, Seq: 3})
		if h.Type != transport.MsgPong || h.Seq != 3 {
			t.Errorf("ping: %+v", h)
		}
	})
}

// What no graph of the server has any more is neither asked for nor does it hold up anything.
func TestForgotten(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, _ := p.open(f, nil)
	dst, src := make([]byte, 100), make([]byte, 100)
	for range 3 {
		id, source := s.Transfer(dst, 0, TransferCaptured), s.Source(src, true)
		function := s.HostFunction(HostFunction{Func: 1, Keep: true})
		if !s.Overlaps(dst) {
			t.Fatal("a captured download may come at any time")
		}
		p.say(transport.MessageHeader{Type: transport.MsgForget, ID: transport.ForgetTransfer, Aux: uint64(id)}, nil)
		p.say(transport.MessageHeader{Type: transport.MsgForget, ID: transport.ForgetSource, Aux: uint64(source)}, nil)
		p.say(transport.MessageHeader{Type: transport.MsgForget, ID: transport.ForgetFunction, Aux: function}, nil)
		again := transport.MessageHeader{Type: transport.MsgForget, ID: transport.ForgetTransfer, Aux: uint64(id)}
		p.say(again, nil)
		within(t, func() {
			for s.Overlaps(dst) {
				s.Look()
			}
		})
	}
	within(t, func() {
		for left := 1; left > 0; {
			s.Look()
			s.registered.Lock()
			left = len(s.registered.downloads) + len(s.registered.sources) + len(s.registered.hosts)
			s.registered.Unlock()
		}
	})
}

func TestCapturedDownloads(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, _ := p.open(f, nil)
	dst := make([]byte, 1000)
	if s.Overlaps(dst) {
		t.Fatal("overlap before there is a transfer")
	}
	id := s.Transfer(dst, 0, TransferCaptured)
	if !s.Overlaps(dst[999:]) || atomic.LoadUint32(&f.shared.TransfersPending) != 0 {
		t.Error("a captured download may come at any time, and is not under way")
	}
	within(t, func() {
		for round := range byte(3) {
			for _, at := range []int{0, 600} {
				data := bytes.Repeat([]byte{round + 1}, min(600, 1000-at))
				h, _ := p.ask(transport.MessageHeader{Type: transport.MsgPush, ID: id, Seq: 5, Aux: uint64(at)}, data...)
				if h.Type != transport.MsgPushed || h.Seq != 5 || h.Result != 0 {
					t.Fatalf("answer %+v", h)
				}
			}
			s.registered.Lock()
			there := bytes.Equal(dst, bytes.Repeat([]byte{round + 1}, 1000))
			s.registered.Unlock()
			if !there {
				t.Fatalf("round %d: the bytes are not there though the client says so", round)
			}
		}
	})
	// Bytes that do not belong there end the session, and touch nothing.
	p.sayBack(transport.MessageHeader{Type: transport.MsgPush, ID: id, Aux: 999}, []byte{7, 7})
	within(t, func() {
		for s.lost() == 0 {
			schedYield()
		}
	})
	if dst[999] != 3 {
		t.Errorf("the last byte is %d", dst[999])
	}
}

func TestImages(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	var mu sync.Mutex
	store := make(map[string][]byte)
	refuse, sent := false, 0
	p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
		if h.Thread != transport.CoreThread {
			echo(p, h, payload, bulk)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch key := string(payload[:32]); h.Op {
		case wire.OpModulePut:
			if refuse {
				p.reply(h, 2, nil)
				return
			}
			store[key] = bulk
			p.reply(h, 0, nil)
		}
	}
	s, _ := p.open(f, nil)
	b, err := os.ReadFile("../../testdata/kernels/kernels.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	img, err := fatbin.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	within(t, func() {
		var wg sync.WaitGroup
		for i := range uint32(4) { // several threads need the same image while others call
			wg.Go(func() {
				name, none, r, err := s.Image(img, 90, false)
				if none != 0 || r != 0 || err != nil {
					t.Errorf("named: %d bytes, result %d, %v", none, r, err)
				}
				hash, n, r, err := s.Image(img, 90, true)
				mu.Lock()
				defer mu.Unlock()
				if r != 0 || err != nil || hash != name || len(store[string(hash[:])]) == 0 {
					t.Errorf("result %d, %v", r, err)
				}
				sent += n
			})
			wg.Go(func() {
				if r, _ := f.call(s, opEcho, i, nil, nil); r != opEcho {
					t.Errorf("call: %d", r)
				}
			})
		}
		wg.Wait()
	})
	mu.Lock()
	if len(store) != 1 {
		t.Errorf("%d images", len(store))
	}
	for _, got := range store {
		if sent != len(got) {
			t.Errorf("%d bytes were sent of an image with %d", sent, len(got))
		}
	}
	for _, got := range store {
		if want, err := fatbin.Select(img, 90); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes arrived, %v", len(got), err)
		}
	}
	refuse = true
	mu.Unlock()
	if _, _, r, err := s.Image(img, 60, false); r != NoBinary || !errors.Is(err, fatbin.ErrNoMatch) {
		t.Errorf("for sm_60: %d, %v", r, err)
	}
	if _, _, r, err := s.Image(img, 75, true); r != 2 || err == nil {
		t.Errorf("refused: %d, %v", r, err)
	}
}

func BenchmarkCall(b *testing.B) {
	p, f := newPeer(b), newFront(b, 1<<16)
	p.command = echo
	s, _ := p.open(f, nil)
	var reply [64]byte
	b.ReportAllocs()
	for b.Loop() {
		if r, _ := f.call(s, opEcho, 0, u64(1), reply[:]); r != opEcho {
			b.Fatal(fmt.Sprint(r))
		}
	}
}
