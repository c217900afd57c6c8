package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/transport"
)

// sessionLimit is how long a session may take to end once its client has said everything. A machine that has much else
// to do takes long.
const sessionLimit = 3 * time.Minute

// trySession sends a changed session to a server and reads what comes, to the end.
func (f *fuzzer) trySession(ctx context.Context, c *trial) {
	list := f.of(c.kind.name == "nvml")
	r := list[c.rnd.IntN(len(list))]
	commands, moved := r.commands(c.rnd, 1+c.rnd.IntN(12))
	b := stream(commands)
	switch c.rnd.IntN(60) {
	case 0:
		b = garbage(c.rnd, 4096)
	case 1, 2:
		b = b[:c.rnd.IntN(len(b)+1)]
	}
	p := &played{recording: r, stream: b, callback: c.rnd.IntN(2) == 0, wrong: c.rnd.IntN(3) == 0,
		idle: 300 * time.Millisecond}
	if len(r.Chunks) > 0 && c.rnd.IntN(4) != 0 {
		p.chunks, p.conns, p.claimed = r.chunks(moved, c.rnd), 1+c.rnd.IntN(3), 0
		if c.rnd.IntN(8) == 0 {
			p.claimed = int(int32(odd(c.rnd)))
		}
	}
	c.says(b, "a session of %s, callback connection %v, %d bulk connections", r.Program, p.callback, p.conns)
	n, err := c.play(ctx, p)
	c.kind.answers.Add(int64(n))
	switch {
	case err == nil:
		c.told(carried)
	case errors.Is(err, errRefused):
		c.told(refused)
	default:
		c.fault("%v", err)
	}
}

// played is a session as it is sent.
type played struct {
	*recording
	stream   []byte
	callback bool // with a callback connection
	wrong    bool // whose answers are wrong now and then
	chunks   [][]byte
	conns    int           // bulk connections
	claimed  int           // how many there are said to be; 0: conns
	idle     time.Duration // after the last message, until the end
	enough   int           // messages, after which the end comes at once; 0: never
}

var errRefused = errors.New("refused")

// play sends a session to the server without TLS. It gives how many messages came back.
func (c *trial) play(ctx context.Context, p *played) (messages int, err error) {
	hello := p.Hello
	hello.Program, hello.PID = c.name(), 0
	conn, err := net.Dial("tcp", c.plain.addr)
	if err != nil {
		return 0, fmt.Errorf("the server is gone: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(sessionLimit))
	preface, err := transport.AppendPreface(nil, nil, &hello)
	if err != nil {
		return 0, err
	}
	if isNVML(p.Program) { // its welcome comes with the first answer
		return exchange(conn, append(preface, p.stream...), false, p)
	}
	if _, err := conn.Write(preface); err != nil {
		return 0, errRefused
	}
	w, err := transport.ReadWelcome(conn)
	if err != nil {
		return 0, fmt.Errorf("no welcome: %w", err)
	}
	if w.Status != transport.StatusOK {
		return 0, errRefused
	}
	var group sync.WaitGroup
	defer group.Wait()
	further := func(kind string, number, count int, then func(net.Conn)) {
		h := transport.Hello{Kind: kind, Session: w.Session, Secret: w.Secret, Purpose: kind, Number: number, Count: count,
			Program: c.name()}
		group.Go(func() {
			x, _, err := transport.DialNet(ctx, transport.Target{Address: c.plain.addr}, &h)
			if err != nil {
				return // the session may have ended
			}
			defer x.Close()
			_ = x.SetDeadline(time.Now().Add(sessionLimit))
			then(x)
		})
	}
	if p.callback {
		rnd := rand.New(rand.NewPCG(c.rnd.Uint64(), 1))
		further(transport.KindCallback, 0, 0, func(x net.Conn) { answerCallback(x, rnd, p.wrong) })
	}
	for i := range p.conns {
		var mine []byte
		for j, k := range p.chunks {
			if j%p.conns == i {
				mine = append(mine, k...)
			}
		}
		if !p.wrong { // else what was recorded of one connection is out of order on several
			new(transport.Chain).Number(mine)
		}
		further(transport.KindBulk, i, cmp.Or(p.claimed, p.conns), func(x net.Conn) {
			go send(x, mine)
			_, _ = io.Copy(io.Discard, x)
		})
	}
	return exchange(conn, p.stream, true, p)
}

// exchange sends a stream and counts what comes back, to the end. It says that nothing follows when nothing has come
// for a while: a server that reads the end of a connection gives up what is under way.
func exchange(conn net.Conn, stream []byte, welcomed bool, p *played) (messages int, err error) {
	s := &messageStream{open: welcomed, message: func(*message) []byte { messages++; return nil }}
	end := time.AfterFunc(time.Hour, func() { _ = conn.(*net.TCPConn).CloseWrite() })
	defer end.Stop()
	go func() {
		_, _ = conn.Write(stream)
		end.Reset(p.idle)
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := conn.Read(b)
		s.feed(b[:n])
		if p.enough > 0 && messages >= p.enough {
			end.Reset(0)
		} else if end.Stop() {
			end.Reset(p.idle)
		}
		if isTimeout(err) {
			return messages, fmt.Errorf("a session does not end within %v", sessionLimit)
		}
		if err != nil {
			return messages, nil
		}
	}
}

// sound replays every recording as it is: if the server refuses what was recorded, the cases made of it attack nothing.
func (f *fuzzer) sound(ctx context.Context) error {
	faults := make(chan error, len(f.all))
	var group sync.WaitGroup
	for _, r := range f.all {
		group.Go(func() { faults <- f.soundOne(ctx, r) })
	}
	group.Wait()
	close(faults)
	var err error
	for e := range faults {
		err = errors.Join(err, e)
	}
	return err
}

func (f *fuzzer) soundOne(ctx context.Context, r *recording) error {
	c := &trial{fuzzer: f, kind: &kind{name: "sound"}, rnd: rand.New(rand.NewPCG(1, 1))}
	commands, moved := r.commands(c.rnd, 0)
	p := &played{recording: r, stream: stream(commands), callback: true, idle: time.Minute, enough: r.Answers / 2}
	if !r.Whole { // its answers are not counted, so none is waited for
		p.idle, p.enough = 300*time.Millisecond, 0
	}
	if len(r.Chunks) > 0 {
		p.chunks, p.conns = r.chunks(moved, nil), 1
	}
	n, err := c.play(ctx, p)
	if err != nil {
		return fmt.Errorf("%s as it was recorded: %w", r.Program, err)
	}
	if n < r.Answers/2 && r.Whole {
		return fmt.Errorf("%s as it was recorded: %d messages came, and %d when it was recorded", r.Program, n, r.Answers)
	}
	return nil
}

// send says all of b, and that nothing follows.
func send(c net.Conn, b []byte) {
	_, _ = c.Write(b)
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// chunks are those that were recorded, for commands that lie elsewhere now, with changes;
// without where rnd is nil.
func (r *recording) chunks(moved map[uint64]uint64, rnd *rand.Rand) [][]byte {
	var list [][]byte
	size := 0
	for _, k := range r.Chunks {
		h, _, err := transport.ParseMessage(k)
		if err != nil {
			continue
		}
		if at, ok := moved[h.Seq]; ok && size < 4*mostBytes {
			k = slices.Clone(k)
			le.PutUint64(k[16:], at)
			list, size = append(list, k), size+len(k)
		}
	}
	if rnd != nil {
		for range rnd.IntN(4) {
			list = spoilMessages(list, rnd)
		}
	}
	return list
}

// answerCallback answers what the server asks on a callback connection: where wrong is said, mostly rightly, so that
// sessions go on.
func answerCallback(c net.Conn, rnd *rand.Rand, wrong bool) {
	var head [transport.MessageHeaderSize]byte
	flush, chain := uint64(0), transport.Chain{}
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		h, _, err := transport.ParseMessage(head[:])
		if err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(transport.Pad(h.Len))); err != nil {
			return
		}
		a := transport.MessageHeader{ID: h.ID, Seq: h.Seq, Aux: h.Aux}
		switch h.Type {
		case transport.MsgRun:
			a.Type = transport.MsgRan
		case transport.MsgPull:
			a.Type, a.Len = transport.MsgPulled, uint32(min(h.Aux, transport.MaxMessage))
		case transport.MsgPush:
			a.Type = transport.MsgPushed
		case transport.MsgPing:
			a.Type = transport.MsgPong
		default:
			continue
		}
		b := a.Append(nil)
		b = append(b, make([]byte, transport.Pad(a.Len))...)
		if wrong && rnd.IntN(8) == 0 {
			flush++
			b = append(transport.MessageHeader{Type: transport.MsgFlush, Seq: flush}.Append(nil), b...)
		}
		if !wrong || rnd.IntN(8) != 0 { // else it is not the next one
			chain.Number(b)
		}
		if wrong && rnd.IntN(4) == 0 {
			switch rnd.IntN(4) {
			case 0:
				spoil(b[:transport.MessageHeaderSize], rnd)
			case 1:
				b = append(b, b...)
			case 2:
				b = b[:rnd.IntN(len(b))]
			case 3:
				b = nil // nothing
			}
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}
