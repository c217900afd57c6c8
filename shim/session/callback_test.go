package session

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// ends wants that the session ends, with one line that has these words.
func ends(t *testing.T, s *Session, text *logText, words string) {
	t.Helper()
	within(t, func() {
		for s.lost() == 0 || text.String() == "" { // the line is written before the calls return, and not before lost
			schedYield()
		}
	})
	if s.lost() != Unavailable || strings.Count(text.String(), "\n") != 1 || !strings.Contains(text.String(), words) {
		t.Errorf("calls answer %d; %q is to be in a line:\n%s", s.lost(), words, text)
	}
}

// A server that asks for what the program did not register, or for more than streams can stand still for, has its
// session ended with one line.
func TestWhatIsNotRegistered(t *testing.T) {
	const bytes = 3 * transport.PullUnit / 2
	for name, c := range map[string]struct {
		h    transport.MessageHeader
		says string
	}{
		"function":       {transport.MessageHeader{Type: transport.MsgRun, Aux: 77}, "unknown host function 77"},
		"source":         {transport.MessageHeader{Type: transport.MsgPull, ID: 77, Aux: 1}, "of source 77"},
		"behind the end": {transport.MessageHeader{Type: transport.MsgPull, ID: 1, Result: 1, Aux: bytes}, "source 1,"},
		"many":           {transport.MessageHeader{Type: transport.MsgRun, Aux: 1}, "answers are due"},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			leave := make(chan struct{})
			defer close(leave)
			s, text := p.open(f, func(HostFunction, int32) { <-leave })
			s.HostFunction(HostFunction{Func: 1, Keep: true})
			s.Source(make([]byte, bytes), true)
			if name == "many" {
				for range maxOpen {
					p.sayBack(c.h, nil)
				}
			}
			p.sayBack(c.h, nil)
			ends(t, s, text, c.says)
		})
	}
}

// A request that something on the way drops, doubles or changes ends the session no later than with the sign of life
// that the server asks for, and nothing runs twice.
func TestRequestsThatSuffer(t *testing.T) {
	for name, changed := range map[string]func(run, ping transport.MessageHeader) []transport.MessageHeader{
		"dropped": func(_, ping transport.MessageHeader) []transport.MessageHeader {
			return []transport.MessageHeader{ping}
		},
		"doubled": func(run, _ transport.MessageHeader) []transport.MessageHeader {
			return []transport.MessageHeader{run, run}
		},
		"exchanged": func(run, ping transport.MessageHeader) []transport.MessageHeader {
			return []transport.MessageHeader{ping, run}
		},
		"changed": func(run, ping transport.MessageHeader) []transport.MessageHeader {
			run.Aux++
			return []transport.MessageHeader{run, ping}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			var ran atomic.Int32
			s, text := p.open(f, func(HostFunction, int32) { ran.Add(1) })
			run := transport.MessageHeader{Type: transport.MsgRun, Seq: 1}
			run.Aux = s.HostFunction(HostFunction{Func: 1, Keep: true})
			s.HostFunction(HostFunction{Func: 2, Keep: true})
			ping := transport.MessageHeader{Type: transport.MsgPing, Seq: 1}
			run.Flags = p.asked.Next(&run)
			ping.Flags = p.asked.Next(&ping)
			for _, h := range changed(run, ping) {
				sayOn(p.callbackConn(), h, nil)
			}
			ends(t, s, text, "missing or has changed")
			if n := ran.Load(); n > 1 || n == 1 && name != "doubled" {
				t.Errorf("%d functions ran", n)
			}
		})
	}
}

// A callback connection on which nothing comes through ends the session, whatever the program waits for, though the
// main connection lives: nobody knows what the server has asked, or whether it has the answer.
func TestSilentCallbackConnection(t *testing.T) {
	for name, begin := range map[string]func(*peer, *Session){
		"a function that may be asked for": func(_ *peer, s *Session) { s.HostFunction(HostFunction{Func: 1}) },
		"a function of a graph":            func(_ *peer, s *Session) { s.HostFunction(HostFunction{Func: 1, Keep: true}) },
		"a source":                         func(_ *peer, s *Session) { s.Source(make([]byte, 8), false) },
		"a captured download":              func(_ *peer, s *Session) { s.Transfer(make([]byte, 8), 0, TransferCaptured) },
		"the last answer": func(p *peer, s *Session) {
			p.sayBack(transport.MessageHeader{Type: transport.MsgRun, Seq: 1, Aux: s.HostFunction(HostFunction{Func: 1})}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			p.beat = 5 * time.Millisecond
			s, text := p.open(f, func(HostFunction, int32) {})
			begin(p, s)
			ends(t, s, text, "on the callback connection any more")
		})
	}
}

// A callback connection that answers is left alone however long a function is not asked for, or runs; and nobody asks
// anything on it once the server has all answers and the program has nothing registered.
func TestCallbackConnectionThatAnswers(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.beat = 100 * time.Millisecond // in a few of which this test must answer, on a busy machine, too
	p.command = echo
	leave := make(chan struct{})
	s, text := p.open(f, func(HostFunction, int32) { <-leave })
	run := transport.MessageHeader{Type: transport.MsgRun, Seq: 1, Aux: s.HostFunction(HostFunction{Func: 1})}
	pings := func(n int) (last uint64) {
		for range n {
			h, _ := p.hearAny()
			if h.Type != transport.MsgPing {
				t.Fatalf("%v, not PING", h.Type)
			}
			p.sayBack(transport.MessageHeader{Type: transport.MsgPong, Seq: h.Seq}, nil)
			last = h.Seq
		}
		return last
	}
	within(t, func() {
		pings(transport.SilentBeats - 1) // each is two beats
		p.sayBack(run, nil)
		pings(transport.SilentBeats - 1) // each is two beats
		close(leave)
		if h, _ := p.hear(); h.Type != transport.MsgRan {
			t.Errorf("%v, not RAN", h.Type)
		}
		for pings(1) == 0 { // sent before RAN was
		}
		for atomic.LoadUint32(&s.heart.resting) == 0 {
			schedYield()
		}
	})
	if s.lost() != 0 {
		t.Error(text)
	}
}
