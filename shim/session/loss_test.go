package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/transport"
)

func TestServerLoss(t *testing.T) {
	garbage := func(p *peer) {
		p.mu.Lock()
		_, _ = p.main.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
		p.mu.Unlock()
	}
	shut := func(p *peer) {
		p.mu.Lock()
		p.main.Close()
		p.mu.Unlock()
	}
	for _, c := range []struct {
		name string
		act  func(*peer)
		at   func(f *front, s *Session) // what the client does when it happens
		says string
	}{
		{"end during a call", shut, func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "has ended"},
		{"garbage during a call", garbage, func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "not the protocol"},
		{"half a reply", func(p *peer) {
			p.mu.Lock()
			h := transport.MessageHeader{Len: 800, Type: transport.MsgReply}
			h.Flags = p.chain.Next(&h)
			_, _ = p.main.Write(h.Append(nil))
			p.main.Close()
			p.mu.Unlock()
		}, func(f *front, s *Session) { f.call(s, opEcho, 0, nil, make([]byte, 800)) }, "has ended"},
		{"a reply that nobody asked for", func(p *peer) {
			for i := range uint64(2) {
				p.say(transport.MessageHeader{Type: transport.MsgReply, ID: 77, Seq: i}, nil)
			}
		}, func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "did not ask"},
		{"a reply to an impossible thread",
			func(p *peer) { p.say(transport.MessageHeader{Type: transport.MsgReply, ID: 1 << 20}, nil) },
			func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "a reply to thread"},
		{"data outside a transfer",
			func(p *peer) { p.say(transport.MessageHeader{Type: transport.MsgData, ID: 0, Aux: 9}, make([]byte, 8)) },
			func(f *front, s *Session) {
				s.Transfer(make([]byte, 16), 0, TransferSync)
				f.call(s, opEcho, 0, nil, nil)
			}, "8 bytes at 9"},
		{"data for nobody", func(p *peer) { p.say(transport.MessageHeader{Type: transport.MsgData, ID: 1 << 17}, nil) },
			func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "unknown transfer"},
		{"a RUN on the main connection", func(p *peer) { p.say(transport.MessageHeader{Type: transport.MsgRun}, nil) },
			func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "RUN on the main connection"},
		{"with last words", func(p *peer) {
			p.say(transport.MessageHeader{Type: transport.MsgNotice}, []byte("out of workers"))
			shut(p)
		}, func(f *front, s *Session) { f.call(s, opEcho, 0, nil, nil) }, "out of workers"},
		{"death while nothing is under way", func(p *peer) { go p.kill() },
			func(f *front, s *Session) { f.async(opEcho, 0, nil) }, "lost"},
		{"death during an asynchronous download", func(p *peer) { go p.kill() }, func(f *front, s *Session) {
			s.Transfer(make([]byte, 100), 0, TransferAsync)
			f.async(opEcho, 0, nil)
		}, "lost"},
		{"death during bulk", func(p *peer) { go p.kill() }, func(f *front, s *Session) {
			f.async(opEcho, 0, nil)
			for f.lost() == 0 {
				f.bulkCall(s, 1, make([]byte, 1<<20))
			}
		}, "lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
				if h.Op == opEcho {
					c.act(p)
				}
			}
			s, text := p.open(f, nil)
			within(t, func() {
				var wg sync.WaitGroup
				for i := range uint32(4) { // other threads wait for replies that never come
					wg.Go(func() {
						for f.lost() == 0 {
							f.call(s, opNote, 10+i, nil, nil)
						}
					})
				}
				c.at(f, s)
				for f.lost() == 0 {
					schedYield()
				}
				wg.Wait()
				if r, _ := f.call(s, opEcho, 0, nil, nil); r != Unavailable {
					t.Errorf("a later call gives %d", r)
				}
				if r := f.bulkCall(s, 0, nil); r != Unavailable {
					t.Errorf("later bulk gives %d", r)
				}
				s.Close()
				s.Wait()
			})
			if n := strings.Count(text.String(), "is lost"); n != 1 || !strings.Contains(text.String(), c.says) {
				t.Errorf("the log does not say %q once:\n%s", c.says, text)
			}
		})
	}
}

// A callback connection that was only foreseen and cannot be opened is missed by nobody, until somebody needs it.
func TestForeseenCallbackConnection(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = echo
	var once sync.Once
	refused := make(chan struct{})
	p.refuse = func() (first bool) {
		once.Do(func() { close(refused); first = true })
		return first
	}
	s, text := p.open(f, nil)
	within(t, func() {
		s.callback.foresee()
		<-refused
		for range 3 {
			if r, _ := f.call(s, opEcho, 0, nil, nil); r != 7 {
				t.Errorf("a call gives %d\n%s", r, text)
			}
		}
		s.HostFunction(HostFunction{})
		p.callbackConn()
	})
}

// The callback connection is there when the first thing is registered that needs it, and not before.
func TestCallbackConnectionIsOpenedWhenNeeded(t *testing.T) {
	for name, need := range map[string]func(*Session){
		"a host function":              func(s *Session) { s.HostFunction(HostFunction{}) },
		"the source of a later upload": func(s *Session) { s.Source(make([]byte, 8), false) },
		"a captured download":          func(s *Session) { s.Transfer(make([]byte, 8), 0, TransferCaptured) },
		"many at once, on their threads": func(s *Session) {
			for range 8 {
				go s.Source(make([]byte, 8), false)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			p.command = echo
			s, _ := p.open(f, nil)
			within(t, func() {
				for range 3 {
					if r, _ := f.call(s, opEcho, 0, nil, nil); r != 7 {
						t.Errorf("a call gives %d", r)
					}
				}
				p.mu.Lock()
				n := len(p.conns)
				p.mu.Unlock()
				if n != 1 {
					t.Errorf("%d connections before anything needs a second one", n)
				}
				need(s)
				p.callbackConn()
				p.mu.Lock()
				n = len(p.conns)
				p.mu.Unlock()
				if n != 2 {
					t.Errorf("%d connections, not 2", n)
				}
			})
		})
	}
}

func TestCallbackGarbage(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, text := p.open(f, nil)
	s.HostFunction(HostFunction{})
	within(t, func() {
		_, _ = p.callbackConn().Write(bytes.Repeat([]byte{0xff}, 64))
		for f.lost() == 0 {
			schedYield()
		}
		for !strings.Contains(text.String(), "not the protocol") {
			schedYield()
		}
	})
}

func TestNoServer(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.kill()
	_, err := Open(f.shared, p.config(io.Discard))
	if !errors.Is(err, transport.ErrRefused) {
		t.Errorf("error %v", err)
	}
	bad := *f.shared
	bad.ABI++
	if _, err := Open(&bad, Config{}); err == nil {
		t.Error("another ABI was accepted")
	}
}

// What the server says that calls answer after its end is what they answer.
func TestLastResult(t *testing.T) {
	for result, want := range map[int32]int32{702: 702, 0: Unavailable, -1: Unavailable} {
		p, f := newPeer(t), newFront(t, 1<<16)
		p.command = func(p *peer, h transport.CommandHeader, payload, bulk []byte) {
			p.say(transport.MessageHeader{Type: transport.MsgNotice, Result: result}, []byte("too long"))
			go p.kill()
		}
		s, text := p.open(f, nil)
		within(t, func() {
			for range 2 {
				if r, _ := f.call(s, opEcho, 0, nil, nil); r != want {
					t.Errorf("%d was said, and %d is answered", result, r)
				}
			}
			s.Close()
			s.Wait()
		})
		if said := text.String(); !strings.Contains(said, strconv.Itoa(int(want))) || !strings.Contains(said, "too long") {
			t.Errorf("the log does not say it:\n%s", said)
		}
	}
}

func TestDamagedRing(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, text := p.open(f, nil)
	f.publish(opEcho, 0, 0, nil)
	binary.LittleEndian.PutUint32(f.ring, 12)
	within(t, func() {
		if r, _ := f.call(s, opEcho, 0, nil, nil); r != Unavailable {
			t.Errorf("result %d", r)
		}
	})
	if !strings.Contains(text.String(), "ring is damaged") {
		t.Errorf("log: %s", text)
	}
}

func TestCloseSendsEverything(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, text := p.open(f, nil)
	within(t, func() {
		for range 50 {
			f.publish(opNote, 0, 0, nil) // without waking anybody
		}
		s.Close()
		<-p.ended
		if r, _ := f.call(s, opEcho, 0, nil, nil); r != Deinitialized {
			t.Errorf("a call after the end gives %d", r)
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ops) != 50 || !p.bye.Load() {
		t.Errorf("%d commands arrived, expected 50, and a farewell: %v", len(p.ops), p.bye.Load())
	}
	if strings.Contains(text.String(), "lost") {
		t.Errorf("a clean end was reported as a loss: %s", text)
	}
}

// A server that reads nothing more must not hold up the end of the program.
func TestCloseIsBounded(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	stop := make(chan struct{})
	p.command = func(*peer, transport.CommandHeader, []byte, []byte) { <-stop }
	s, _ := p.open(f, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for f.lost() == 0 {
			f.bulkCall(s, 0, make([]byte, 1<<20))
		}
	}()
	within(t, func() {
		for atomic.LoadUint64(&f.shared.Head) == 0 {
			schedYield()
		}
		s.Close()
		<-done
	})
	close(stop)
}

// An answer that comes twice is not taken for that of the thread's next call: that would be wrong data with success.
func TestDoubledReply(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
		p.reply(h, 0, payload)
		p.reply(h, 0, payload)
	}
	s, _ := p.open(f, nil)
	first, second := bytes.Repeat([]byte{1}, 8), bytes.Repeat([]byte{2}, 8)
	reply := make([]byte, 8)
	if result, _ := f.call(s, opEcho, 3, first, reply); result != 0 && result != Unavailable {
		t.Errorf("result %d", result)
	}
	clear(reply)
	if result, _ := f.call(s, opEcho, 3, second, reply); result != Unavailable {
		t.Errorf("the call behind a doubled answer: result %d, %x", result, reply)
	}
}

// A server can neither fill the client's memory with replies that nobody waits for, nor its log.
func TestServerThatFloods(t *testing.T) {
	const each = 1 << 20
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
		for range 10 * maxNotices {
			p.say(transport.MessageHeader{Type: transport.MsgNotice}, []byte("look here"))
		}
		data := make([]byte, each)
		for thread := range uint32(maxEarlyReplies/each + 1) {
			if thread != h.Thread {
				p.say(transport.MessageHeader{Type: transport.MsgReply, ID: thread}, data)
			}
		}
		p.say(transport.MessageHeader{Type: transport.MsgReply, ID: maxEarlyReplies/each + 1}, data)
		p.reply(h, 0, payload)
	}
	s, text := p.open(f, nil)
	if result, _ := f.call(s, opEcho, 3, make([]byte, 8), make([]byte, 8)); result != Unavailable {
		t.Errorf("result %d", result)
	}
	if n := strings.Count(text.String(), "look here"); n < maxNotices || n > maxNotices+1 { // one in the last words
		t.Errorf("%d lines of the server's", n)
	}
	if !strings.Contains(text.String(), "that nobody asked for") {
		t.Errorf("the log does not say why:\n%.2000s", text)
	}
}
