package server

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/nvmldispatch"
	"scuda.dev/scuda/transport"
)

const nvmlReplyBytes = 1 << 20

// serveNVML answers one NVML call after the other, until the client takes its leave (nil). The welcome goes out with
// the answers to what the client sent with its greeting: what is there is answered in one write. While the driver is at
// work the client gets a sign of life each beat, without which it would give the server up.
func serveNVML(
	conn transport.Conn, d *nvmldispatch.Dispatcher, welcome []byte, beat time.Duration, last *ender,
) error {
	defer conn.Close()
	defer d.Close()
	c := &blocking{conn: conn, out: welcome, beat: beat}
	defer last.over()
	gone := func(err error) error {
		if text := last.over(); text != "" {
			return c.refuse(errors.New(text))
		}
		return fmt.Errorf("%w: %w", executor.ErrGone, err)
	}
	c.timer = time.AfterFunc(beat, c.sign)
	defer c.timer.Stop()
	at := uint64(0) // the number that the next command has
	reply := make([]byte, nvmlReplyBytes)
	frame := make([]byte, transport.FrameHeaderSize)
	command := make([]byte, transport.MaxCommand)
	for {
		if _, err := io.ReadFull(c, frame); err != nil {
			if errors.Is(err, io.EOF) {
				err = executor.ErrEnded
			}
			return gone(err)
		}
		f, _, err := transport.ParseFrame(frame)
		if err != nil || f.Len > transport.MaxCommand {
			return c.refuse(fmt.Errorf("%w: frame of %d bytes: %w", executor.ErrProtocol, f.Len, err))
		}
		if _, err := io.ReadFull(c, command[:f.Len]); err != nil {
			return gone(err)
		}
		for left := command[:f.Len]; len(left) > 0; {
			h, payload, err := transport.ParseCommand(left)
			bye := h.Op == wire.OpBye
			switch {
			case err != nil || h.Flags != transport.FlagAnswer && !bye:
				return c.refuse(fmt.Errorf("%w: NVML command with flags %#x: %w", executor.ErrProtocol, uint16(h.Flags), err))
			case h.Seq != at:
				return c.refuse(fmt.Errorf("%w: NVML command %d, not %d: one before it is missing or came twice",
					executor.ErrProtocol, h.Seq, at))
			case bye:
				_ = c.flush() // a client that left may have closed its connection
				return nil
			}
			left, at = left[h.Size:], at+uint64(h.Size)
			c.work(true)
			result, n, err := d.Call(h.Op, payload, reply)
			c.work(false)
			if err != nil {
				return c.refuse(fmt.Errorf("%w: %w", executor.ErrProtocol, err))
			}
			c.message(transport.MessageHeader{Type: transport.MsgReply, ID: h.Thread, Result: result, Seq: h.Seq}, reply[:n])
			if len(c.out) > nvmlReplyBytes {
				if err := c.flush(); err != nil {
					return fmt.Errorf("%w: %w", executor.ErrGone, err)
				}
			}
		}
	}
}

// ender ends an NVML session from another goroutine: nothing more is read, and the client is told why.
type ender struct {
	mu   sync.Mutex
	fd   int // of the connection; -1: the session is over
	text string
}

func (e *ender) end(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fd >= 0 {
		e.text = text
		_ = unix.Shutdown(e.fd, unix.SHUT_RD) // its failure means that the connection is gone
	}
}

// over says that nothing is read any more, and gives the reason, if somebody wanted it so.
func (e *ender) over() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fd = -1
	return e.text
}

// blocking makes a connection wait. What there is to send goes out before.
type blocking struct {
	conn transport.Conn
	beat time.Duration

	mu      sync.Mutex // held by whoever sends while the driver is at work; guards what follows
	out     []byte
	chain   transport.Chain
	working bool
	timer   *time.Timer // calls sign
}

// work says whether the driver is at work.
func (b *blocking) work(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.working = on; on {
		b.timer.Reset(b.beat)
	} else {
		b.timer.Stop()
	}
}

// sign is the beat of a driver at work. Whether the client has it, whoever sends the answer finds out.
func (b *blocking) sign() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.working {
		b.message(transport.MessageHeader{Type: transport.MsgAlive}, nil)
		_ = b.flush()
		b.timer.Reset(b.beat)
	}
}

// message adds one to what there is to send.
func (b *blocking) message(h transport.MessageHeader, payload []byte) {
	h.Len = uint32(len(payload))
	h.Flags = b.chain.Next(&h)
	b.out = append(h.Append(b.out), payload...)
	b.out = append(b.out, make([]byte, transport.Pad(len(payload))-len(payload))...)
}

func (b *blocking) Read(p []byte) (int, error) {
	for {
		n, err := b.conn.Recv([][]byte{p})
		if !errors.Is(err, transport.ErrAgain) {
			return n, err
		}
		if err := b.flush(); err != nil {
			return 0, err
		}
		if _, err := b.conn.Wait(transport.Readable, -1); err != nil {
			return 0, err
		}
	}
}

func (b *blocking) flush() error {
	for p := b.out; len(p) > 0; {
		n, err := b.conn.Send([][]byte{p})
		p = p[n:]
		if errors.Is(err, transport.ErrAgain) {
			_, err = b.conn.Wait(transport.Writable, -1)
		}
		if err != nil {
			return err
		}
	}
	b.out = b.out[:0]
	return nil
}

// refuse tells the client why its session ends.
func (b *blocking) refuse(err error) error {
	b.message(transport.MessageHeader{Type: transport.MsgNotice}, []byte(err.Error()))
	_ = b.flush()
	return err
}
