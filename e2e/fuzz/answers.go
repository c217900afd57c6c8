package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"scuda.dev/scuda/transport"
)

// ours is what a program says only if scuda's own library broke down in it.
var ours = regexp.MustCompile(`(?m)^(panic:|fatal error:|SIG[A-Z]+:|runtime: |unexpected fault)`)

// verdict looks at how a program ended. strict: nothing that was changed may be seen as a result.
func (c *trial) verdict(r *recording, p ran, strict bool) {
	switch {
	case p.err != nil:
		c.fault("%s did not start: %v", r.Program, p.err)
	case ours.MatchString(p.text):
		c.fault("the client's library broke down in %s, exit status %d, %v:\n%s", r.Program, p.code, p.signal, p.text)
	case p.late:
		c.told(waited)
	case p.signal == syscall.SIGBUS && strings.Contains(p.text, "the program gets SIGBUS"):
		c.told(refused) // it touched unified memory whose server is lost: there is no other way to say so
	case p.code < 0 && p.signal != 0:
		c.fault("%s was ended by %v:\n%s%s", r.Program, p.signal, p.out, p.text)
	case strict && p.code == 0 && r.Steady && p.out != r.Output && !failedCall(p.text):
		c.fault("%s succeeded with wrong results; it printed\n%s\nand should have printed\n%s", r.Program, p.out, r.Output)
	case strict && p.code != 0 && !failedCall(p.text):
		c.fault("%s saw wrong results:\n%s%s", r.Program, p.out, p.text)
	case p.code == 0:
		c.told(carried)
	default:
		c.told(refused)
	}
}

// failedCall says whether a call told the program that it failed, so that it does not take the data for right ones.
func failedCall(text string) bool {
	return strings.Contains(text, ": got ") || strings.Contains(text, "scuda: error: ")
}

// tryAnswers runs a program against a server whose answers are changed on their way.
func (f *fuzzer) tryAnswers(ctx context.Context, c *trial) {
	r := f.all[c.rnd.IntN(len(f.all))]
	plan := &spoiler{rnd: rand.New(rand.NewPCG(c.rnd.Uint64(), 2)), order: c.rnd.IntN(3) == 0}
	most := max(2, r.Answers)
	if c.rnd.IntN(3) != 0 { // early: most programs ask for the same at first, and little afterwards
		most = min(most, 60)
	}
	for range 1 + c.rnd.IntN(3) {
		plan.at = append(plan.at, c.rnd.IntN(most))
	}
	if c.rnd.IntN(12) == 0 && !plan.order {
		plan.welcome = true
	}
	plan.cut = c.rnd.IntN(20) == 0
	c.says(nil, "%s, answers %v changed; only their order %v, the welcome %v", r.Program, plan.at, plan.order,
		plan.welcome)
	p, err := newProxy(f.plain.addr, func(conn *connection) {
		s := &messageStream{message: func(m *message) []byte { return plan.answer(conn, m) }}
		if !plan.order {
			conn.up = func(part []byte) []byte {
				if numberedKinds.Match(part) {
					conn.numbered.Store(true)
				}
				return part
			}
			s.message = func(m *message) []byte { return conn.chained(plan.answer(conn, m)) }
		}
		if plan.welcome {
			s.welcome = plan.spoilWelcome
		}
		conn.down = s.feed
	})
	if err != nil {
		c.fault("%v", err)
		return
	}
	defer p.cut()
	got := f.programWithin(context.WithoutCancel(ctx), f.patience, r.Program, p.addr, "SCUDA_BULK=2", "SCUDA_RESUME=0")
	c.mu.Lock()
	c.note += "; done: " + strings.Join(plan.did(), ", ")
	c.mu.Unlock()
	c.verdict(r, got, plan.order)
}

// spoiler changes some of a server's messages. Its connections share it.
type spoiler struct {
	order   bool  // messages are dropped, doubled and exchanged only, so that nobody may take one for another
	at      []int // which messages, in the order in which they come
	welcome bool
	cut     bool

	mu   sync.Mutex // guards what follows
	rnd  *rand.Rand
	seen int
	done []string
	held []byte // a message that comes behind the next
}

func (s *spoiler) did() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.done)
}

// answer gets a message and says what goes on.
func (s *spoiler) answer(conn *connection, m *message) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.seen
	s.seen++
	out := m.bytes()
	if slices.Contains(s.at, n) {
		if s.cut {
			s.done = append(s.done, fmt.Sprintf("%d: cut behind %v", n, m.Type))
			_ = conn.client.CloseWrite()
			return nil
		}
		before := m.MessageHeader
		var what string
		if what, out = s.change(m, out); what == "held" {
			s.held = append(s.held, out...)
			out = nil
		}
		s.done = append(s.done, fmt.Sprintf("%d: %s %+v -> %+v", n, what, before, m.MessageHeader))
		return out
	}
	if s.held != nil {
		out, s.held = append(out, s.held...), nil
	}
	return out
}

// numberedKinds finds the greetings of connections whose messages have numbers.
var numberedKinds = regexp.MustCompile(`"Kind":"(cuda|nvml|bulk|side)"`)

// chained gives messages the numbers by which a client knows that they follow each other, as a server does that means
// harm.
func (c *connection) chained(b []byte) []byte {
	if !c.numbered.Load() {
		return b
	}
	c.chain.Number(b)
	return b
}

// change changes one message.
func (s *spoiler) change(m *message, b []byte) (what string, out []byte) {
	rnd := s.rnd
	kinds := 9
	if s.order {
		kinds = 3
	}
	switch rnd.IntN(kinds) {
	case 0:
		return "dropped", nil
	case 1:
		return "doubled", slices.Concat(b, b)
	case 2:
		return "held", b
	case 3:
		h := &m.MessageHeader
		switch rnd.IntN(6) {
		case 0:
			h.Type = transport.MessageType(rnd.IntN(56))
		case 1:
			h.Flags = uint16(odd(rnd))
		case 2:
			h.ID = uint32(odd(rnd))
		case 3:
			h.Result = int32(odd(rnd))
		case 4:
			h.Seq = odd(rnd)
		case 5:
			h.Aux = odd(rnd)
		}
		return "header", m.bytes()
	case 4: // another length, with as many bytes
		n := rnd.IntN(int(m.Len) + 4096)
		if rnd.IntN(2) == 0 {
			n = min(n, int(m.Len))
		}
		p := make([]byte, transport.Pad(n))
		copy(p, m.payload)
		m.Len, m.payload = uint32(n), p
		return "length", m.bytes()
	case 5:
		spoil(b[:transport.MessageHeaderSize], rnd)
		return "raw header", b
	case 6, 7:
		spoil(m.payload, rnd)
		return "payload", m.bytes()
	default: // one that nobody asked for
		h := transport.MessageHeader{Type: transport.MessageType(1 + rnd.IntN(24)), Flags: uint16(rnd.IntN(4)),
			ID: m.ID, Seq: m.Seq, Aux: m.Aux, Len: uint32(rnd.IntN(64))}
		if rnd.IntN(2) == 0 {
			h.ID, h.Seq, h.Aux = uint32(odd(rnd)), odd(rnd), odd(rnd)
		}
		x := append(h.Append(nil), make([]byte, transport.Pad(h.Len))...)
		return fmt.Sprintf("%v in front,", h.Type), append(x, b...)
	}
}

// spoilWelcome changes the JSON of a welcome, or its head.
func (s *spoiler) spoilWelcome(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b = slices.Clone(b)
	for range 1 + s.rnd.IntN(8) {
		at := welcomeHead + s.rnd.IntN(max(1, min(len(b)-welcomeHead, 4096)))
		switch s.rnd.IntN(4) {
		case 0:
			spoil(b[:welcomeHead], s.rnd)
		case 1:
			if at < len(b) {
				b[at] = "0123456789-\"{}[],"[s.rnd.IntN(17)]
			}
		default: // a number becomes another
			for ; at < len(b) && (b[at] < '0' || b[at] > '9'); at++ {
			}
			if at < len(b) {
				b[at] = '0' + byte(s.rnd.IntN(10))
			}
		}
	}
	s.done = append(s.done, "welcome")
	return b
}

// tryTLS runs a program with TLS and changes bytes or records on their way, in one direction. Nothing of that may be
// seen but as an error.
func (f *fuzzer) tryTLS(ctx context.Context, c *trial) {
	r := f.all[c.rnd.IntN(len(f.all))]
	up := c.rnd.IntN(2) == 0
	rnd := rand.New(rand.NewPCG(c.rnd.Uint64(), 3))
	at := rnd.Int64N(1 << (8 + rnd.IntN(14)))
	how := rnd.IntN(5)
	c.says(nil, "%s with TLS, way %d from byte %d on, to the server %v", r.Program, how, at, up)
	var mu sync.Mutex
	seen, done := int64(0), false
	change := func(part []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		from := at - seen
		seen += int64(len(part))
		if done || from < 0 || from >= int64(len(part)) {
			return part
		}
		done = true
		out, i := slices.Clone(part), int(from)
		switch how {
		case 0:
			out[i] ^= 1 << rnd.IntN(8)
		case 1:
			out = slices.Delete(out, i, min(len(out), i+1+rnd.IntN(64)))
		case 2:
			out = slices.Insert(out, i, out[max(0, i-rnd.IntN(256)):i]...)
		case 3:
			out = slices.Concat(out, out)
		case 4:
			for j := i; j < min(len(out), i+32); j++ {
				out[j] = byte(rnd.Uint32())
			}
		}
		return out
	}
	p, err := newProxy(f.tls.addr, func(conn *connection) {
		if up {
			conn.up = change
		} else {
			conn.down = change
		}
	})
	if err != nil {
		c.fault("%v", err)
		return
	}
	defer p.cut()
	got := f.programWithin(context.WithoutCancel(ctx), f.patience, r.Program, p.addr, "SCUDA_BULK=2",
		"SCUDA_FINGERPRINT="+f.tls.fingerprint, "SCUDA_TOKEN="+f.tls.token)
	c.verdict(r, got, true)
}
