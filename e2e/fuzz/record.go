package main

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// recording is what a program sent on its connections, and what came back.
type recording struct {
	Program string
	Hello   transport.Hello
	// Commands are those of the main connection.
	Commands []command
	// Chunks are those of the bulk connections.
	Chunks [][]byte
	// Answers is how many messages came on the main connection.
	Answers int
	// Whole says that all commands were recorded.
	Whole bool
	// Output is what the program printed; Steady, whether it printed the same twice.
	Output string
	Steady bool
}

// command is a command with its header, and the bulk data that followed it.
type command struct{ Text, Bulk []byte }

// Programs whose sessions are recorded. The more of the protocol they use, the better; some take long.
var (
	quickPrograms = []string{
		"graph_nodes", "graph_edits", "graph_captured", "batches", "textures", "vmm", "linker", "streams", "settings",
		"occupancy", "callbacks", "nvml",
	}
	slowPrograms = []string{"compute", "copies", "graph", "boxes", "arrays", "managed", "print"}
)

// programs are those of this run.
func (o *options) programs() []string {
	if o.quick {
		return quickPrograms
	}
	return slices.Concat(quickPrograms, slowPrograms)
}

// mostRecorded is how much of a connection is kept, at least where there is more: cases are made of its beginning.
const mostRecorded = 4 * mostBytes

// isNVML says of which kind a program's session is.
func isNVML(program string) bool { return program == "nvml" }

// record runs every program through a proxy.
func (f *fuzzer) record() error {
	for _, name := range f.programs() {
		r, err := f.recordOne(name)
		if err != nil {
			return err
		}
		f.all = append(f.all, r)
	}
	return nil
}

func (f *fuzzer) recordOne(name string) (*recording, error) {
	r := &recording{Program: name}
	var mu sync.Mutex
	p, err := newProxy(f.plain.addr, func(c *connection) {
		var b bytes.Buffer
		c.up = func(part []byte) []byte {
			if b.Len() < mostRecorded {
				b.Write(part)
			}
			return part
		}
		messages := 0
		parser := &messageStream{message: func(m *message) []byte { messages++; return m.bytes() }}
		c.down = parser.feed
		c.ended = func() {
			mu.Lock()
			defer mu.Unlock()
			r.take(b.Bytes(), messages)
		}
	})
	if err != nil {
		return nil, err
	}
	env := []string{"SCUDA_BULK=2", "SCUDA_RESUME=0"} // what is recorded are messages, not what carries them
	first := f.program(name, p.addr, env...)
	p.close()
	if first.err != nil || first.code != 0 {
		return nil, fmt.Errorf("recording %s: exit status %d, %w\n%s%s", name, first.code, first.err, first.out, first.text)
	}
	if len(r.Commands) == 0 {
		return nil, fmt.Errorf("%s opened no session", name)
	}
	second := f.program(name, f.plain.addr, env...)
	r.Output, r.Steady = first.out, first.out == second.out
	return r, nil
}

// take keeps what came on one connection.
func (r *recording) take(b []byte, messages int) {
	in := bytes.NewReader(b)
	hello, err := transport.ReadPreface(in, nil)
	if err != nil {
		return
	}
	b = b[len(b)-in.Len():]
	switch hello.Kind {
	case transport.KindCUDA, transport.KindNVML:
		if isNVML(r.Program) == (hello.Kind == transport.KindNVML) && len(r.Commands) == 0 {
			r.Hello, r.Commands, r.Answers, r.Whole = *hello, split(b), messages, len(b) < mostBytes
		}
	case transport.KindBulk:
		for len(b) >= transport.MessageHeaderSize {
			h, n, err := transport.ParseMessage(b)
			n += transport.Pad(int(h.Len))
			if err != nil || n > len(b) {
				return
			}
			r.Chunks, b = append(r.Chunks, b[:n]), b[n:]
		}
	}
}

// split takes a stream of commands apart, as far as it is whole.
func split(b []byte) (list []command) {
	for len(b) > 0 {
		f, n, err := transport.ParseFrame(b)
		if err != nil || int(f.Len) > len(b)-n {
			return list // the program's last words
		}
		frame := b[n : n+int(f.Len)]
		b = b[n+int(f.Len):]
		for len(frame) > 0 {
			h, payload, err := transport.ParseCommand(frame)
			if err != nil {
				return list
			}
			c := command{Text: frame[:h.Size]}
			frame = frame[h.Size:]
			if h.Flags&(transport.FlagBulk|transport.FlagTransfer) == transport.FlagBulk {
				size := transport.Pad(h.BulkBytes(payload))
				if size > uint64(len(b)) {
					return list
				}
				c.Bulk, b = b[:size], b[size:]
			}
			list = append(list, c)
		}
	}
	return list
}

// save writes the recordings where a later run finds them.
func (f *fuzzer) save(name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(file)
	return errors.Join(gob.NewEncoder(z).Encode(f.all), z.Close(), file.Close())
}

// load reads what save wrote. The digest of what travels has to be today's, so the hello gets that.
func (f *fuzzer) load(name, digest string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	if err := gob.NewDecoder(z).Decode(&f.all); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, r := range f.all {
		if r.Hello.Digest != digest && !isNVML(r.Program) {
			return fmt.Errorf("%s was recorded by another release", name)
		}
	}
	return nil
}

// of are the recordings of one kind.
func (f *fuzzer) of(nvml bool) []*recording {
	return slices.DeleteFunc(slices.Clone(f.all), func(r *recording) bool { return isNVML(r.Program) != nvml })
}

// message is what a server says, as it goes through a proxy.
type message struct {
	transport.MessageHeader
	payload []byte // padded
}

func (m *message) bytes() []byte { return append(m.Append(nil), m.payload...) }

// messageStream finds the messages in what a server says: behind a welcome, to the end.
type messageStream struct {
	buf     []byte
	open    bool                  // the welcome is past
	welcome func(b []byte) []byte // gets the welcome, and says what goes on in its place; nil: the same
	message func(*message) []byte // gets each message, and says what goes on in its place
	broken  bool                  // no messages: everything passes as it is
}

const welcomeHead = len(transport.Magic) + 12

// feed gets a part of the stream, and says what goes on.
func (s *messageStream) feed(part []byte) (out []byte) {
	if s.broken {
		return part
	}
	s.buf = append(s.buf, part...)
	if !s.open {
		if len(s.buf) < welcomeHead {
			return nil
		}
		in := bytes.NewReader(s.buf)
		_, err := transport.ReadWelcome(in)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return nil
		}
		n := len(s.buf) - in.Len()
		out = s.buf[:n:n]
		s.buf, s.open = s.buf[n:], true
		if s.welcome != nil {
			out = s.welcome(out)
		}
	}
	for len(s.buf) >= transport.MessageHeaderSize {
		h, n, err := transport.ParseMessage(s.buf)
		if err != nil {
			s.broken = true
			return append(out, s.buf...)
		}
		end := n + transport.Pad(int(h.Len))
		if end > len(s.buf) {
			break
		}
		out = append(out, s.message(&message{h, slices.Clone(s.buf[n:end])})...)
		s.buf = s.buf[end:]
	}
	return out
}

// connection is one that goes through a proxy. A function gets what arrives and says what goes on; nil: nothing does.
type connection struct {
	up, down func(part []byte) []byte
	ended    func()
	client   *net.TCPConn
	numbered atomic.Bool // its messages have numbers
	chain    transport.Chain
}

// proxy stands between programs and a server.
type proxy struct {
	addr     string
	listener net.Listener
	group    sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

func newProxy(server string, opened func(*connection)) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{addr: l.Addr().String(), listener: l}
	p.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				c.Close()
				continue
			}
			if !p.keep(c, up) {
				return
			}
			conn := &connection{client: c.(*net.TCPConn)}
			opened(conn)
			var both sync.WaitGroup
			both.Go(func() { pass(c, up, conn.down) })
			both.Go(func() { pass(up, c, conn.up) })
			p.group.Go(func() {
				both.Wait()
				c.Close()
				up.Close()
				if conn.ended != nil {
					conn.ended()
				}
			})
		}
	})
	return p, nil
}

// keep notes connections that close has to end; false where it is too late.
func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		for _, c := range conns {
			c.Close()
		}
		return false
	}
	p.conns = append(p.conns, conns...)
	return true
}

// close ends the proxy once what clients and server have said is through.
func (p *proxy) close() {
	p.listener.Close()
	p.group.Wait()
}

// cut ends the proxy and its connections.
func (p *proxy) cut() {
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.close()
}

func pass(to, from net.Conn, change func([]byte) []byte) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if out := b[:n]; n > 0 {
			if change != nil {
				out = change(out)
			}
			if len(out) > 0 {
				if _, err := to.Write(out); err != nil {
					from.Close()
					return
				}
			}
		}
		if err != nil {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
	}
}
