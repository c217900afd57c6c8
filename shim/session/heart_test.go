package session

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

func TestPulse(t *testing.T) {
	const silent = transport.SilentBeats
	quiet := func(n int) (l []signs) { return make([]signs, n) }
	for _, c := range []struct {
		name    string
		beats   []signs
		awaited bool
		want    verdict // of the last beat
	}{
		{"nothing is waited for", quiet(99), false, fine},
		{"nothing comes", quiet(silent), true, gone},
		{"not for long", quiet(silent - 1), true, ask},
		{"a message", append(quiet(silent-1), signs{messages: 1}), true, fine},
		{"a message, then nothing", append([]signs{{messages: 1}}, slicesOf(signs{messages: 1}, silent)...), true, gone},
		{"many bytes", append(quiet(silent-1), signs{bytes: least}), true, fine},
		{"the bytes of swallowed answers", append(quiet(silent-1), signs{bytes: least - 1}), true, gone},
		{"few bytes each time", []signs{{bytes: 2000}, {bytes: 4000}, {bytes: 6000}, {bytes: 8000}, {bytes: 9000},
			{bytes: 9500}, {bytes: 9700}}, true, ask},
		{"something unread", append(quiet(silent-1), signs{unread: true}), true, fine},
	} {
		var p pulse
		var got verdict
		for i, now := range c.beats {
			if got = p.beat(now, c.awaited); got == gone && i < len(c.beats)-1 {
				t.Errorf("%s: gone at beat %d", c.name, i)
			}
		}
		if got != c.want {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

func slicesOf(s signs, n int) (l []signs) {
	for range n {
		l = append(l, s)
	}
	return l
}

// Whatever happens to one answer on its way, nobody gets a wrong result with success, and nobody waits for ever.
func TestAnswersThatSuffer(t *testing.T) {
	type header = transport.MessageHeader
	for name, change := range map[string]func(h *header) []header{
		"dropped":         func(*header) []header { return nil },
		"doubled":         func(h *header) []header { return []header{*h, *h} },
		"behind another":  func(h *header) []header { return []header{{Type: transport.MsgDone, ID: 1 << 16}, *h} },
		"a notice":        func(h *header) []header { h.Type = transport.MsgNotice; return []header{*h} },
		"an end":          func(h *header) []header { h.Type = transport.MsgDone; return []header{*h} },
		"longer":          func(h *header) []header { h.Len += 4096; return []header{*h} },
		"shorter":         func(h *header) []header { h.Len = 0; return []header{*h} },
		"another thread":  func(h *header) []header { h.ID++; return []header{*h} },
		"another number":  func(h *header) []header { h.Seq += 40; return []header{*h} },
		"an older number": func(h *header) []header { h.Seq -= 40; return []header{*h} },
		"another result":  func(h *header) []header { h.Result = 1; return []header{*h} },
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			p.beat = 10 * time.Millisecond
			p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) { p.reply(h, 0, payload) }
			answers := 0
			p.change = func(h transport.MessageHeader) []transport.MessageHeader {
				if h.Type == transport.MsgReply {
					answers++
				}
				if h.Type == transport.MsgReply && answers == 5 {
					return change(&h)
				}
				return []transport.MessageHeader{h}
			}
			s, text := p.open(f, nil)
			within(t, func() {
				for i := byte(0); ; i++ {
					want, reply := bytes.Repeat([]byte{i}, 8), make([]byte, 8)
					r, _ := f.call(s, opEcho, 3, want, reply)
					if r == Unavailable {
						break
					}
					if r != 0 || !bytes.Equal(reply, want) {
						t.Fatalf("call %d: result %d, %x", i, r, reply)
					}
					if i == 9 {
						t.Fatal("nothing was noticed")
					}
				}
			})
			if n := strings.Count(text.String(), "is lost"); n != 1 {
				t.Errorf("%d lines say so:\n%s", n, text)
			}
		})
	}
}

// Data that are missing end a download before anybody takes it for complete.
func TestMissingData(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
		for i := range uint64(2) {
			p.say(transport.MessageHeader{Type: transport.MsgData, ID: 4, Seq: h.Seq, Aux: i * 8}, some(8, 1))
		}
		p.reply(h, 0, nil)
	}
	p.change = func(h transport.MessageHeader) []transport.MessageHeader {
		if h.Type == transport.MsgData && h.Aux == 8 {
			return nil
		}
		return []transport.MessageHeader{h}
	}
	s, _ := p.open(f, nil)
	within(t, func() {
		s.Transfer(make([]byte, 16), 4, TransferSync)
		if r, _ := f.call(s, wire.OpCopyD2H, 4, nil, nil); r != Unavailable {
			t.Errorf("a download without half of its data gives %d", r)
		}
	})
}

// A server that gives no sign of life is given up; one that does may take its time, and nobody is asked anything while
// the program is idle.
func TestSilence(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.beat = 100 * time.Millisecond // in a few of which the peer must answer, on a busy machine, too
	hold := make(chan transport.CommandHeader, 1)
	p.command = func(p *peer, h transport.CommandHeader, _, _ []byte) { hold <- h }
	s, text := p.open(f, nil)
	beats := func(n uint64) { // so many answered pings
		for seen := s.heart.ponged.Load(); s.heart.ponged.Load() < seen+n; {
			schedYield()
		}
	}
	within(t, func() {
		result := make(chan int32, 1)
		call := func() {
			go func() {
				r, _ := f.call(s, opEcho, 0, nil, nil)
				result <- r
			}()
		}
		call()
		beats(3 * transport.SilentBeats)
		p.reply(<-hold, 0, nil)
		if r := <-result; r != 0 {
			t.Errorf("a call that took long: %d; %s", r, text)
		}
		for atomic.LoadUint32(&s.heart.resting) == 0 {
			schedYield()
		}
		p.deaf.Store(true)
		call()
		if r := <-result; r != Unavailable {
			t.Errorf("a call that nobody answers: %d", r)
		}
	})
	if !strings.Contains(text.String(), "no sign of life") {
		t.Error(text)
	}
}
