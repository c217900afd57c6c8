package session

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/transport"
)

// The GPU's stream may ask for an upload or a host function before the bytes of an earlier download have come over the
// other connection.
func TestDownloadsBeforeWhatFollows(t *testing.T) {
	for _, what := range []transport.MessageType{transport.MsgPull, transport.MsgRun} {
		p, f := newPeer(t), newFront(t, 1<<16)
		buf := make([]byte, 100)
		var seen atomic.Uint32
		s, _ := p.open(f, func(HostFunction, int32) { seen.Store(uint32(buf[50])) })
		s.Transfer(make([]byte, 100), 0, TransferCaptured) // never complete, must not be waited for
		other := s.Transfer(make([]byte, 100), 0, TransferAsync)
		id := s.Transfer(buf, 0, TransferAsync)
		m := transport.MessageHeader{Type: what, Seq: 7}
		if what == transport.MsgPull {
			m.ID, m.Aux = s.Source(buf[40:60], false), 20|transport.LastPull
		} else {
			m.Aux = s.HostFunction(HostFunction{Func: 1})
			p.say(transport.MessageHeader{Type: transport.MsgDone, ID: other}, nil)
		}
		later := s.Transfer(buf, 0, TransferAsync) // behind what is asked for
		within(t, func() {
			answer := make(chan []byte)
			go func() {
				_, data := p.ask(m)
				answer <- data
			}()
			p.say(transport.MessageHeader{Type: transport.MsgData, ID: id}, bytes.Repeat([]byte{9}, 100))
			select {
			case <-answer:
				t.Fatalf("%v was answered before the download was done", what)
			default:
			}
			p.say(transport.MessageHeader{Type: transport.MsgDone, ID: id}, nil)
			data := <-answer
			if what == transport.MsgPull {
				if len(data) != 20 {
					t.Fatalf("%d bytes", len(data))
				}
				seen.Store(uint32(data[10]))
			}
			if seen.Load() != 9 {
				t.Errorf("%v saw %d", what, seen.Load())
			}
			p.say(transport.MessageHeader{Type: transport.MsgDone, ID: later}, nil)
		})
	}
}

// Only what the GPU has finished by then is waited for: the answer to FLUSH tells.
func TestDownloadsThatWaitForSomethingElse(t *testing.T) {
	for _, what := range []transport.MessageType{transport.MsgPull, transport.MsgRun} {
		p, f := newPeer(t), newFront(t, 1<<16)
		buf := make([]byte, 100)
		s, text := p.open(f, func(HostFunction, int32) {
			if buf[50] != 9 {
				t.Error("a host function ran before the download that came before it")
			}
		})
		before := s.Transfer(buf, 0, TransferAsync)
		other := s.Transfer(buf, 0, TransferAsync) // comes long after
		m := transport.MessageHeader{Type: what, Seq: 7}
		if what == transport.MsgPull {
			m.ID, m.Aux = s.Source(buf[40:60], false), 20|transport.LastPull
		} else {
			m.Aux = s.HostFunction(HostFunction{Func: 1})
		}
		p.flush = func(h transport.MessageHeader) {
			p.say(transport.MessageHeader{Type: transport.MsgData, ID: before}, bytes.Repeat([]byte{9}, 100))
			p.say(transport.MessageHeader{Type: transport.MsgDone, ID: before}, nil)
			p.say(transport.MessageHeader{Type: transport.MsgFlushed, Seq: h.Seq}, nil)
		}
		within(t, func() {
			if _, data := p.ask(m); what == transport.MsgPull && (len(data) != 20 || data[0] != 9) {
				t.Errorf("pulled %v", data)
			}
		})
		p.say(transport.MessageHeader{Type: transport.MsgDone, ID: other}, nil)
		if strings.Contains(text.String(), "has not said") {
			t.Errorf("the answer to FLUSH was not waited for: %s", text)
		}
	}
}
