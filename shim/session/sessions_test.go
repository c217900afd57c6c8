package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// stream checks that a server which gets a part of the ring's commands can count along: skips say how much was for
// others.
type stream struct {
	t  *testing.T
	at uint64 // guarded by the peer, which gives it one command after the other
}

// skips says whether a command is one, and checks any other's place.
func (s *stream) skips(h transport.CommandHeader, payload []byte) bool {
	if h.Op == wire.OpSkip {
		if h.Thread != transport.CoreThread {
			s.t.Errorf("a skip by thread %d", h.Thread)
		}
		s.at += binary.LittleEndian.Uint64(payload)
		return true
	}
	if h.Seq != s.at {
		s.t.Errorf("a command at %d, expected at %d", h.Seq, s.at)
	}
	s.at = h.Seq + uint64(h.Size)
	return false
}

// openAll opens a session with each server; all have to know skips.
func openAll(t *testing.T, f *front, peers []*peer) (*Sessions, *logText) {
	t.Helper()
	return openWith(t, f, peers, nil)
}

// openWith does, and has the front asked for what changed of pinned memory.
func openWith(t *testing.T, f *front, peers []*peer, mapped func(*Shared, *MappedUpload) bool) (*Sessions, *logText) {
	t.Helper()
	text := new(logText)
	var servers []Config
	for _, p := range peers {
		p.welcome.Capabilities = transport.Offered()
		cfg := p.config(text)
		cfg.Mapped = mapped
		servers = append(servers, cfg)
	}
	all, err := OpenAll(f.shared, servers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		all.Close()
		for i := range peers {
			all.Of(i).Wait()
		}
	})
	return all, text
}

// forServer names the server that a thread's next command is for.
func forServer(server int, thread uint32) uint32 { return uint32(server)<<serverShift | thread }

// Threads that call several servers in turn, with uploads among their calls, get the answers of each, and each server
// gets its own commands in the order in which they were made, by thread numbers that do not name it.
func TestSeveralServersShareTheRing(t *testing.T) {
	f := newFront(t, 1<<14) // a small ring: threads wait for room
	const servers, threads, rounds = 3, 8, 150
	var peers []*peer
	sums := make([]atomic.Uint64, servers)
	for i := range servers {
		p, s := newPeer(t), &stream{t: t}
		p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
			if s.skips(h, payload) {
				return
			}
			if h.Flags&transport.FlagBulk == 0 && int(payload[0]) != i || h.Thread >= threads {
				t.Errorf("server %d got a command of server %d, thread %#x", i, payload[0], h.Thread)
			}
			sums[i].Add(uint64(len(bulk)))
			if h.Flags&transport.FlagAnswer != 0 {
				p.reply(h, int32(100+i), payload)
			}
		}
		peers = append(peers, p)
	}
	all, text := openAll(t, f, peers)
	var want [servers]atomic.Uint64
	within(t, func() {
		var wg sync.WaitGroup
		for thread := range uint32(threads) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(7, uint64(thread)))
				reply := make([]byte, 2048)
				for range rounds {
					server := r.IntN(servers)
					payload := slices.Repeat([]byte{byte(server)}, 8+8*r.IntN(200))
					switch r.IntN(4) {
					case 0:
						f.async(opNote, forServer(server, thread), payload)
					case 1:
						data := make([]byte, r.IntN(40_000))
						want[server].Add(uint64(len(data)))
						end := f.publish(opNote, transport.FlagBulk, forServer(server, thread), u64(0, uint64(len(data))))
						if result := all.Of(server).Bulk(end, data); result != 0 {
							t.Errorf("an upload gives %d: %s", result, text)
							return
						}
					default:
						result, n := f.callOf(all, server, thread, payload, reply)
						if result != int32(100+server) || !bytes.Equal(reply[:n], payload) {
							t.Errorf("server %d answered %d with %d bytes, expected %d: %s", server, result, n, len(payload), text)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		for i := range servers { // behind all uploads
			f.callOf(all, i, 0, bytes.Repeat([]byte{byte(i)}, 8), nil)
			if got := sums[i].Load(); got != want[i].Load() {
				t.Errorf("server %d got %d bytes, expected %d", i, got, want[i].Load())
			}
		}
	})
}

// callOf makes a synchronous call to a server.
func (f *front) callOf(all *Sessions, server int, thread uint32, payload, reply []byte) (int32, uint32) {
	return f.call(all.Of(server), opEcho, forServer(server, thread), payload, reply)
}

// One server of several that is lost is lost alone: what waits for it fails, its commands are passed over, uploads
// among them, and the others' go on.
func TestOneOfSeveralIsLost(t *testing.T) {
	f := newFront(t, 1<<14)
	var peers []*peer
	for i := range 3 {
		p, s := newPeer(t), &stream{t: t}
		p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
			if !s.skips(h, payload) && h.Flags&transport.FlagAnswer != 0 && (i != 1 || h.Thread == 0) {
				p.reply(h, 0, nil)
			}
		}
		peers = append(peers, p)
	}
	all, text := openAll(t, f, peers)
	lost := all.Of(1)
	within(t, func() {
		f.callOf(all, 1, 0, nil, nil)
		var wg sync.WaitGroup
		for thread := range uint32(6) {
			wg.Go(func() {
				switch thread {
				case 0: // waits for an answer that never comes
					if result, _ := f.callOf(all, 1, 7, nil, nil); result != Unavailable {
						t.Errorf("a call of the lost server gives %d", result)
					}
				case 1, 2: // uploads that nobody reads any more
					for lost.lost() == 0 {
						end := f.publish(opNote, transport.FlagBulk, forServer(1, thread), u64(0, 1<<20))
						lost.Bulk(end, make([]byte, 1<<20))
					}
				default:
					for lost.lost() == 0 {
						if result, _ := f.callOf(all, int(thread)%2*2, thread, nil, nil); result != 0 {
							t.Errorf("another server gives %d", result)
							return
						}
					}
				}
			})
		}
		peers[1].kill()
		wg.Wait()
		for range 300 { // more than the ring holds
			f.async(opNote, forServer(1, 0), make([]byte, 256))
			if result, _ := f.callOf(all, 1, 1, nil, nil); result != Unavailable {
				t.Fatalf("a later call of the lost server gives %d", result)
			}
			end := f.publish(opNote, transport.FlagBulk, forServer(1, 1), u64(0, 8))
			if result := lost.Bulk(end, make([]byte, 8)); result != Unavailable {
				t.Fatalf("a later upload gives %d", result)
			}
			for _, i := range []int{0, 2} {
				if result, _ := f.callOf(all, i, 2, nil, nil); result != 0 {
					t.Fatalf("server %d gives %d", i, result)
				}
			}
		}
	})
	if n := strings.Count(text.String(), "is lost"); n != 1 || f.lost() != 0 {
		t.Errorf("the program's sessions have ended with %d:\n%s", f.lost(), text)
	}
}

// A server that does not know skips is none of several.
func TestServersWithoutSkips(t *testing.T) {
	f := newFront(t, 1<<14)
	able, unable := newPeer(t), newPeer(t)
	able.welcome.Capabilities = transport.Offered()
	_, err := OpenAll(f.shared, able.config(io.Discard), unable.config(io.Discard))
	if !errors.Is(err, transport.ErrCapability) {
		t.Errorf("%v", err)
	}
	for _, n := range []int{0, MostSessions + 1} {
		if _, err := OpenAll(f.shared, make([]Config, n)...); err == nil {
			t.Errorf("%d servers are taken", n)
		}
	}
}

// Pinned memory that kernels use is brought in step when launches are sent: what was written before one goes up ahead
// of it, once for all that are sent together, and servers do not see the flag that says so.
func TestMappedMemoryGoesAheadOfLaunches(t *testing.T) {
	f := newFront(t, 1<<14)
	const servers, threads, rounds = 2, 4, 300
	var written atomic.Uint64 // what the program wrote last
	var sent [servers]uint64  // the front's shadow; under the sender's lock
	var compared, launches atomic.Int32
	next := func(sh *Shared, u *MappedUpload) bool {
		if sh != f.shared || u.Context != 7 || u.Position != atomic.LoadUint64(&sh.Head) {
			t.Errorf("asked with context %d at %d", u.Context, u.Position)
		}
		compared.Add(1)
		now := written.Load()
		if sent[u.Server] == now {
			return false
		}
		sent[u.Server] = now
		u.Dst, u.Bytes, u.Flags, u.Source = 40, 5, wire.CopySync, &u64(now)[0]
		return true
	}
	var peers []*peer
	for range servers {
		p, s := newPeer(t), &stream{t: t}
		var there, numbered uint64
		p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
			if h.Thread == transport.CoreThread {
				if numbered++; h.Seq != numbered {
					t.Errorf("command %d of the core is number %d", numbered, h.Seq)
				}
			}
			switch {
			case h.Op == wire.OpCopyH2D && h.Thread == transport.CoreThread:
				up, data, ok := wire.View[wire.CopyH2D](payload)
				if !ok || h.Flags != transport.FlagOwn || h.Context != 7 || up.Dst != 40 || up.Bytes != 5 || len(data) != 8 {
					t.Errorf("an upload %+v of %d bytes with %+v", up, len(data), h)
					return
				}
				there = binary.LittleEndian.Uint64(data)
			case s.skips(h, payload):
			case h.Op == wire.OpLaunch:
				if want := binary.LittleEndian.Uint64(payload); there < want {
					t.Errorf("a launch behind the write of %d finds %d", want, there)
				}
				launches.Add(1)
			}
			if h.Flags&transport.FlagAnswer != 0 {
				p.reply(h, 0, nil)
			}
		}
		peers = append(peers, p)
	}
	all, _ := openWith(t, f, peers, next)
	within(t, func() {
		var wg sync.WaitGroup
		for thread := range uint32(threads) {
			wg.Go(func() {
				for i := range rounds {
					server := (i / 20) % servers
					f.publishIn(7, wire.OpLaunch, flagMapped, forServer(server, thread), u64(written.Add(1)))
					f.wakeSender()
					switch i % 30 {
					case 7:
						f.call(all.Of(server), opNote, forServer(server, thread), make([]byte, 8), nil)
					case 13:
						all.Of(server).Mapped(7, false)
					}
				}
			})
		}
		wg.Wait()
		for i := range servers {
			f.call(all.Of(i), opNote, forServer(i, 0), make([]byte, 8), nil)
		}
	})
	if n := launches.Load(); n != threads*rounds {
		t.Errorf("%d launches came, expected %d", n, threads*rounds)
	}
	t.Logf("%d launches, %d questions", launches.Load(), compared.Load())
}
