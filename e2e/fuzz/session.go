package main

import (
	"context"
	"errors"
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
	commands, moved := r.commands(c.rnd)
	b := stream(commands)
	if c.rnd.IntN(30) == 0 {
		b = make([]byte, c.rnd.IntN(4096))
		for i := range b {
			b[i] = byte(c.rnd.Uint32())
		}
	} else if c.rnd.IntN(30) == 0 {
		b = b[:c.rnd.IntN(len(b)+1)]
	}
	side := !isNVML(r.Program) && c.rnd.IntN(2) == 0
	bulk := len(r.Chunks) > 0 && c.rnd.IntN(4) != 0
	c.says(b, "a session of %s, callback connection %v, bulk connections %v", r.Program, side, bulk)
	hello := r.Hello
	hello.Program, hello.PID = c.name(), 0
	conn, err := net.Dial("tcp", f.plain.addr)
	if err != nil {
		c.fault("the server is gone: %v", err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(sessionLimit))
	preface, err := transport.AppendPreface(nil, nil, &hello)
	if err != nil {
		c.fault("%v", err)
		return
	}
	if isNVML(r.Program) { // its welcome comes with the first answer
		go send(conn, append(preface, b...))
		if c.read(conn) {
			c.told(carried)
		}
		return
	}
	if _, err := conn.Write(preface); err != nil {
		c.told(refused)
		return
	}
	w, err := transport.ReadWelcome(conn)
	if err != nil || w.Status != transport.StatusOK {
		if errors.Is(err, net.ErrClosed) || err != nil && !errors.Is(err, io.EOF) {
			c.fault("no welcome: %v", err)
		}
		c.told(refused)
		return
	}
	var group sync.WaitGroup
	defer group.Wait()
	sideRnd := rand.New(rand.NewPCG(c.rnd.Uint64(), 1))
	further := func(kind string, number, count int, then func(net.Conn)) {
		h := transport.Hello{Kind: kind, Session: w.Session, Secret: w.Secret, Purpose: kind, Number: number, Count: count,
			Program: c.name()}
		group.Go(func() {
			x, _, err := transport.DialNet(ctx, transport.Target{Address: f.plain.addr}, &h)
			if err != nil {
				return // the session may have ended
			}
			defer x.Close()
			_ = x.SetDeadline(time.Now().Add(sessionLimit))
			then(x)
		})
	}
	if side {
		further(transport.KindCallback, 0, 0, func(x net.Conn) { answerSide(x, sideRnd) })
	}
	if bulk {
		count := 1 + c.rnd.IntN(3)
		chunks := r.chunks(moved, c.rnd)
		for i := range count {
			var mine []byte
			for j, k := range chunks {
				if j%count == i {
					mine = append(mine, k...)
				}
			}
			claimed := count
			if c.rnd.IntN(8) == 0 {
				claimed = int(int32(odd(c.rnd)))
			}
			further(transport.KindBulk, i, claimed, func(x net.Conn) {
				go send(x, mine)
				_, _ = io.Copy(io.Discard, x)
			})
		}
	}
	go send(conn, b)
	if c.read(conn) {
		c.told(carried)
	}
}

// send says all of b, and that nothing follows.
func send(c net.Conn, b []byte) {
	_, _ = c.Write(b)
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// read reads until the server closes.
func (c *trial) read(conn net.Conn) bool {
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		c.fault("a session does not end within %v", sessionLimit)
		return false
	}
	return true
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// chunks are those that were recorded, for commands that lie elsewhere now, with changes.
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
	for range rnd.IntN(4) {
		list = spoilMessages(list, rnd)
	}
	return list
}

// answerSide answers what the server asks on a callback connection: mostly rightly, so that sessions go on.
func answerSide(c net.Conn, rnd *rand.Rand) {
	wrong := rnd.IntN(3) == 0
	var head [transport.MessageHeaderSize]byte
	flush := uint64(0)
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
		if rnd.IntN(8) == 0 {
			flush++
			b = append(transport.MessageHeader{Type: transport.MsgFlush, Seq: flush}.Append(nil), b...)
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
