package e2e

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"scuda.dev/scuda/transport"
)

// between stands between a client and its server and changes messages of the callback connection on their way.
type between struct {
	server string
	what   transport.MessageType // the first of this type…
	change func([][]byte) [][]byte
	held   int  // …and so many behind it are given to change together
	deaf   bool // from then on nothing of the connection arrives anywhere, though it stays open

	mu   sync.Mutex // guards what follows
	seen map[transport.MessageType]int
	list [][]byte
	done bool
}

// listen gives the address that clients are to use.
func (b *between) listen(t *testing.T) string {
	b.seen = make(map[transport.MessageType]int)
	return listen(t, b.serve).Addr().String()
}

func (b *between) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", b.server)
	if err != nil {
		return
	}
	defer server.Close()
	hello, err := transport.ReadPreface(client, nil)
	if err != nil {
		return
	}
	preface, err := transport.AppendPreface(nil, nil, hello)
	if err != nil {
		return
	}
	if _, err := server.Write(preface); err != nil {
		return
	}
	up, down := io.Copy, io.Copy
	if hello.Kind == transport.KindCallback {
		up, down = func(to io.Writer, from io.Reader) (int64, error) {
			return b.copy(to, from, false)
		}, func(to io.Writer, from io.Reader) (int64, error) {
			head := make([]byte, 20) // of the welcome
			if _, err := io.ReadFull(from, head); err != nil {
				return 0, err
			}
			if _, err := to.Write(head); err != nil {
				return 0, err
			}
			n := int64(head[16]) | int64(head[17])<<8 | int64(head[18])<<16
			if _, err := io.CopyN(to, from, n); err != nil {
				return 0, err
			}
			return b.copy(to, from, true)
		}
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = up(server, client)
		_ = server.(*net.TCPConn).CloseWrite()
	})
	both.Go(func() {
		_, _ = down(client, server)
		_ = client.(*net.TCPConn).CloseWrite()
	})
	both.Wait()
}

// copy hands messages on.
func (b *between) copy(to io.Writer, from io.Reader, isDown bool) (int64, error) {
	for {
		m := make([]byte, transport.MessageHeaderSize)
		if _, err := io.ReadFull(from, m); err != nil {
			return 0, err
		}
		h, _, err := transport.ParseMessage(m)
		if err != nil {
			return 0, err
		}
		m = slices.Concat(m, make([]byte, transport.Pad(int(h.Len))))
		if _, err := io.ReadFull(from, m[transport.MessageHeaderSize:]); err != nil {
			return 0, err
		}
		if _, err := to.Write(slices.Concat(b.next(h.Type, isDown, m)...)); err != nil {
			return 0, err
		}
	}
}

// next says what goes on in the place of a message.
func (b *between) next(what transport.MessageType, isDown bool, m []byte) [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen[what]++
	if b.done && b.deaf {
		return nil
	}
	towards := b.what == transport.MsgRun || b.what == transport.MsgPull || b.what == transport.MsgPush
	if b.done || b.change == nil || isDown != towards || len(b.list) == 0 && what != b.what {
		return [][]byte{m}
	}
	if b.list = append(b.list, m); len(b.list) <= b.held {
		return nil
	}
	b.done = true
	return b.change(b.list)
}

// Whatever happens to a message of the callback connection, the program does not wait for ever, and no function runs
// twice with success: its calls answer that the session is lost, and it says so in a line.
func TestCallbackMessagesThatSuffer(t *testing.T) {
	s := serve(t)
	drop := func(l [][]byte) [][]byte { return l[1:] }
	double := func(l [][]byte) [][]byte { return slices.Insert(l, 0, l[0]) }
	swap := func(l [][]byte) [][]byte { return [][]byte{l[1], l[0]} }
	for _, c := range []struct {
		program string
		what    transport.MessageType
		how     string
		change  func([][]byte) [][]byte
	}{
		{"copies", transport.MsgRun, "dropped", drop},
		{"copies", transport.MsgRun, "doubled", double},
		{"copies", transport.MsgRun, "swapped", swap},
		{"copies", transport.MsgRan, "dropped", drop},
		{"copies", transport.MsgRan, "doubled", double},
		{"callbacks", transport.MsgRun, "dropped", drop},
		{"callbacks", transport.MsgRun, "doubled", double},
		{"callbacks", transport.MsgRan, "dropped", drop},
		{"callbacks", transport.MsgRan, "swapped", swap},
		{"copies", transport.MsgPull, "dropped", drop},
		{"copies", transport.MsgPulled, "dropped", drop},
		{"ordering", transport.MsgFlush, "dropped", drop},
		{"callbacks", transport.MsgRun, "swallowed", drop},
		{"callbacks", transport.MsgRan, "swallowed", drop},
		{"graph_captured", transport.MsgPushed, "swallowed", drop},
		{"graph_captured", transport.MsgPull, "dropped", drop},
		{"graph_captured", transport.MsgPulled, "doubled", double},
		{"graph_captured", transport.MsgPush, "dropped", drop},
		{"graph_captured", transport.MsgPush, "doubled", double},
		{"graph_captured", transport.MsgPushed, "dropped", drop},
		{"graph_captured", transport.MsgPushed, "swapped", swap},
	} {
		t.Run(fmt.Sprintf("%s/%v %s", c.program, c.what, c.how), func(t *testing.T) {
			t.Parallel()
			b := &between{server: s.addr, what: c.what, change: c.change}
			switch c.how {
			case "swapped":
				b.held = 1
			case "swallowed":
				b.deaf = true
			}
			p := start(t, clientEnv(b.listen(t), "SCUDA_RESUME=0"), program(c.program), kernels)
			code := p.wait(patience)
			b.mu.Lock()
			defer b.mu.Unlock()
			if text := p.err.String(); !b.done || code == 0 || strings.Count(text, "is lost") != 1 {
				t.Errorf("exit status %d, changed: %v, messages %v:\n%s", code, b.done, b.seen, text)
			}
		})
	}
}
