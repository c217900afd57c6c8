package executor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport"
)

const (
	clientBase = 0x10_0000_0000
	serverBase = 0x20_0000_0000
	slots      = 1 << 16
	deadline   = 2 * time.Minute
)

// client is the protocol's other side, for tests.
type client struct {
	t        testing.TB
	tolerant bool // of replies to commands that it does not know of
	session  *Session
	conn     net.Conn
	ended    chan error

	mu        sync.Mutex
	transfers map[uint32][]byte // destinations
	done      map[uint32]int32
	text      string
	notices   []string
	keepLog   bool // set before the first command
	log       []transport.MessageHeader
	replies   map[uint32]chan message
	lost      chan struct{}
	wmu       sync.Mutex
	seq       uint64
	slot      uint64
	context   uint64
	// of the commands that follow
	correlation uint32

	callback     net.Conn
	callbackMu   sync.Mutex      // guards callbackOut, and is held while a message is sent
	callbackOut  transport.Chain // of what is sent there
	hostFns      map[uint64]func()
	sources      map[uint32][]byte
	dropped      map[uint32]int
	callbackDone chan struct{}
}

type message struct {
	transport.MessageHeader
	payload []byte
}

type option func(*Config)

func fdPair(t testing.TB) (int, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "client")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], c
}

func fileConn(t testing.TB, fd int) net.Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openSim(t testing.TB) cuda.GPU {
	t.Helper()
	g, err := sim.Open(sim.Config{
		MemoryBytes: 256 << 20, Contents: sim.ContentsProcess, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// connect runs a session on a simulated GPU of its own and retains the primary context.
func connect(t testing.TB, options ...option) *client {
	t.Helper()
	c := connectBare(t, options...)
	c.context = c.newHandle()
	c.must(wire.OpPrimary, wire.Bytes(&wire.Primary{Context: c.context}))
	return c
}

func connectBare(t testing.TB, options ...option) *client {
	t.Helper()
	fd, conn := fdPair(t)
	main, err := transport.NewConn(fd, "test")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Conn: main, Hello: transport.Hello{
			ClientBase: clientBase, ClientSlots: slots, ServerBase: serverBase, ServerSlots: slots,
		},
	}
	for _, o := range options {
		o(&cfg)
	}
	if cfg.GPU == nil {
		cfg.GPU = openSim(t)
	}
	if testing.Verbose() && cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, session: s, conn: conn, ended: make(chan error, 1), transfers: map[uint32][]byte{},
		done:    map[uint32]int32{},
		replies: map[uint32]chan message{}, lost: make(chan struct{}), hostFns: map[uint64]func(){},
		sources: map[uint32][]byte{},
		dropped: map[uint32]int{}}
	prepared := make(chan cuda.CUresult, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread's state ends with it
		cfg.GPU.ThreadInit()
		prepared <- cfg.GPU.CuInit(0)
		c.ended <- s.Run()
	}()
	if r := <-prepared; r != 0 {
		t.Fatalf("cuInit: %v", r)
	}
	c.tolerant = cfg.GPU == cuda.GPU(nothing{})
	go c.read()
	t.Cleanup(func() {
		c.conn.Close()
		c.wait()
		if c.callback != nil {
			c.callback.Close()
			<-c.callbackDone
		}
		<-c.lost
		s.Free()
	})
	return c
}

// wait waits for the session's end.
func (c *client) wait() error {
	select {
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(deadline):
		c.t.Fatal("the session does not end")
		return nil
	}
}

func (c *client) read() {
	defer close(c.lost)
	head := make([]byte, transport.MessageHeaderSize)
	for {
		if _, err := io.ReadFull(c.conn, head); err != nil {
			return
		}
		h, _, err := transport.ParseMessage(head)
		if err != nil {
			c.t.Errorf("the server sends nonsense: %v", err)
			return
		}
		payload := make([]byte, transport.Pad(int(h.Len)))
		if _, err := io.ReadFull(c.conn, payload); err != nil {
			return
		}
		payload = payload[:h.Len]
		c.mu.Lock()
		if c.keepLog {
			c.log = append(c.log, h)
		}
		switch h.Type {
		case transport.MsgReply:
			ch := c.replies[h.ID]
			delete(c.replies, h.ID)
			if ch == nil && !c.tolerant {
				c.t.Errorf("a reply nobody waits for: %+v", h)
			} else if ch != nil {
				ch <- message{h, payload}
			}
		case transport.MsgData:
			dst := c.transfers[h.ID]
			if int(h.Aux)+len(payload) > len(dst) && !c.tolerant {
				c.t.Errorf("data beyond transfer %d: %d bytes at %d of %d", h.ID, len(payload), h.Aux, len(dst))
			} else if !c.tolerant {
				copy(dst[h.Aux:], payload)
			}
		case transport.MsgDone:
			c.done[h.ID] = h.Result
		case transport.MsgNotice:
			c.notices = append(c.notices, string(payload))
		case transport.MsgText:
			c.text += strconv.Itoa(int(h.ID)) + ":" + string(payload)
		}
		c.mu.Unlock()
	}
}

// openCallback opens the callback connection and answers on it.
func (c *client) openCallback() {
	c.t.Helper()
	fd, conn := fdPair(c.t)
	theirs := fileConn(c.t, fd)
	if err := c.session.AttachCallback(lineOf(c.t, theirs)); err != nil {
		c.t.Fatal(err)
	}
	c.callback, c.callbackDone = conn, make(chan struct{})
	go func() {
		defer close(c.callbackDone)
		head := make([]byte, transport.MessageHeaderSize)
		var chain transport.Chain
		for {
			if _, err := io.ReadFull(conn, head); err != nil {
				return
			}
			h, _, err := transport.ParseMessage(head)
			if err == nil {
				err = chain.Check(&h)
			}
			if err != nil || h.Len != 0 && h.Type != transport.MsgPush {
				c.t.Errorf("callback: %+v %v", h, err)
				return
			}
			out := transport.MessageHeader{Type: transport.MsgRan, Seq: h.Seq}
			var payload []byte
			switch h.Type {
			case transport.MsgPing:
				out.Type = transport.MsgPong
			case transport.MsgRun:
				c.mu.Lock()
				f := c.hostFns[h.Aux]
				c.mu.Unlock()
				f()
			case transport.MsgPush:
				data := make([]byte, transport.Pad(int(h.Len)))
				if _, err := io.ReadFull(conn, data); err != nil {
					return
				}
				c.mu.Lock()
				copy(c.transfers[h.ID][h.Aux:], data[:h.Len])
				c.mu.Unlock()
				out.Type = transport.MsgPushed
			case transport.MsgPull:
				c.mu.Lock()
				off := uint64(h.Result) * transport.PullUnit
				payload = slices.Clone(c.sources[h.ID][off : off+h.Aux&^transport.LastPull])
				if h.Aux&transport.LastPull != 0 {
					c.dropped[h.ID]++
				}
				c.mu.Unlock()
				out.Type = transport.MsgPulled
			}
			if c.sayBack(out, payload) != nil {
				return
			}
		}
	}()
}

// sayBack sends a message on the callback connection.
func (c *client) sayBack(h transport.MessageHeader, payload []byte) error {
	c.callbackMu.Lock()
	defer c.callbackMu.Unlock()
	h.Len = uint32(len(payload))
	b := append(h.Append(nil), payload...)
	b = append(b, make([]byte, transport.Pad(len(payload))-len(payload))...)
	c.callbackOut.Number(b)
	_, err := c.callback.Write(b)
	return err
}

func (c *client) newHandle() uint64 {
	c.slot++
	return clientBase + (c.slot-1)*64
}

// command encodes a command of a thread.
func (c *client) command(thread uint32, op uint16, flags transport.CommandFlags, payload []byte) []byte {
	size := transport.CommandHeaderSize + transport.Pad(len(payload))
	h := transport.CommandHeader{Size: uint32(size), Op: op, Flags: flags, Seq: c.seq, Context: c.context, Thread: thread,
		Correlation: c.correlation}
	c.seq += uint64(size)
	b := h.Append(nil)
	b = append(b, payload...)
	return append(b, make([]byte, size-len(b))...)
}

func frame(commands ...[]byte) []byte {
	all := slices.Concat(commands...)
	return append(transport.FrameHeader{Len: uint32(len(all))}.Append(nil), all...)
}

func (c *client) write(b []byte) {
	c.t.Helper()
	_ = c.conn.SetWriteDeadline(time.Now().Add(deadline))
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// again is a frame of commands that were made earlier, and numbers them.
func (c *client) again(commands ...[]byte) []byte {
	for _, b := range commands {
		binary.LittleEndian.PutUint64(b[8:], c.seq)
		c.seq += uint64(len(b))
	}
	return frame(commands...)
}

// send sends an unanswered command of thread 0.
func (c *client) send(op uint16, payload []byte) {
	c.t.Helper()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.write(frame(c.command(0, op, 0, payload)))
}

// start sends an answered command and gives where its reply comes.
func (c *client) start(thread uint32, op uint16, flags transport.CommandFlags, payload, bulk []byte) <-chan message {
	c.t.Helper()
	ch := make(chan message, 1)
	c.mu.Lock()
	c.replies[thread] = ch
	c.mu.Unlock()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	b := frame(c.command(thread, op, flags|transport.FlagAnswer, payload))
	b = append(b, bulk...)
	c.write(append(b, make([]byte, transport.Pad(len(bulk))-len(bulk))...))
	return ch
}

// unanswered wants that there is no answer yet.
func (c *client) unanswered(ch <-chan message) {
	c.t.Helper()
	select {
	case m := <-ch:
		c.t.Fatalf("a wait ended early: %+v", m.MessageHeader)
	default:
	}
}

func (c *client) await(ch <-chan message) message {
	c.t.Helper()
	select {
	case m := <-ch:
		return m
	case <-c.lost:
		c.t.Fatalf("the connection ended: %v; notices %q", c.wait(), c.notices)
	case <-time.After(deadline):
		c.t.Fatal("no reply")
	}
	return message{}
}

func (c *client) call(op uint16, payload []byte) (cuda.CUresult, []byte) {
	c.t.Helper()
	m := c.await(c.start(0, op, 0, payload, nil))
	return cuda.CUresult(m.Result), m.payload
}

func (c *client) must(op uint16, payload []byte) []byte {
	c.t.Helper()
	r, reply := c.call(op, payload)
	if r != cuda.CUDA_SUCCESS {
		c.t.Fatalf("%s: %s", OpName(op), resultText(r))
	}
	return reply
}

func (c *client) expect(want cuda.CUresult, op uint16, payload []byte) {
	c.t.Helper()
	if r, _ := c.call(op, payload); r != want {
		c.t.Fatalf("%s: %s, want %s", OpName(op), resultText(r), resultText(want))
	}
}

// words encodes parameters of generic calls.
func words(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

func (c *client) alloc(n uint64) uint64 {
	c.t.Helper()
	return word(c.must(cuda.OpCuMemAlloc_v2, words(1, n)), 1)
}

func (c *client) stream(flags uint64) uint64 {
	c.t.Helper()
	h := c.newHandle()
	c.send(cuda.OpCuStreamCreate, words(h, flags))
	return h
}

func (c *client) event() uint64 {
	h := c.newHandle()
	c.send(cuda.OpCuEventCreate, words(h, 2))
	return h
}

// upload copies to the device, by the form that the front would choose.
func (c *client) upload(dst uint64, data []byte, stream uint64, flags uint32) {
	c.t.Helper()
	p := wire.CopyH2D{Dst: dst, Bytes: uint64(len(data)), Stream: stream, Flags: flags}
	if len(data) <= maxInline {
		c.send(wire.OpCopyH2D, append(bytes.Clone(wire.Bytes(&p)), data...))
		return
	}
	payload := append(bytes.Clone(wire.Bytes(&p)), words(p.Bytes)...)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	b := append(frame(c.command(0, wire.OpCopyH2D, transport.FlagBulk, payload)), data...)
	c.write(append(b, make([]byte, transport.Pad(len(data))-len(data))...))
}

func (c *client) startDownload(thread uint32, dst []byte, src, stream uint64) <-chan message {
	c.t.Helper()
	c.mu.Lock()
	c.transfers[thread] = dst
	c.mu.Unlock()
	p := wire.CopyD2H{Src: src, Bytes: uint64(len(dst)), Stream: stream, Transfer: thread, Flags: flagSync}
	return c.start(thread, wire.OpCopyD2H, 0, wire.Bytes(&p), nil)
}

func (c *client) download(src uint64, n int, stream uint64) []byte {
	c.t.Helper()
	dst := make([]byte, n)
	if m := c.await(c.startDownload(0, dst, src, stream)); m.Result != 0 {
		c.t.Fatalf("download: %s", resultText(cuda.CUresult(m.Result)))
	}
	return dst
}

// asyncDownload downloads in stream order; wait for the DONE of its id.
func (c *client) asyncDownload(id uint32, dst []byte, src, stream uint64, flags uint32) {
	c.t.Helper()
	c.mu.Lock()
	c.transfers[id] = dst
	c.mu.Unlock()
	p := wire.CopyD2H{Src: src, Bytes: uint64(len(dst)), Stream: stream, Transfer: id, Flags: flags}
	c.send(wire.OpCopyD2H, wire.Bytes(&p))
}

// hostFunc enqueues f, which runs on the callback connection's goroutine.
func (c *client) hostFunc(stream uint64, registration uint64, f func()) {
	c.t.Helper()
	c.mu.Lock()
	c.hostFns[registration] = f
	c.mu.Unlock()
	c.send(wire.OpHostFunc, wire.Bytes(&wire.HostFunc{Stream: stream, Registration: registration}))
}

func (c *client) sync(stream uint64) {
	c.t.Helper()
	c.must(cuda.OpCuStreamSynchronize, words(stream))
}

// until polls a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// loadModule sends an image and loads it as a module.
func (c *client) loadModule(image []byte) uint64 {
	c.t.Helper()
	h := c.putImage(image)
	mod := c.newHandle()
	c.must(wire.OpModuleLoad, wire.Bytes(&wire.ModuleLoad{Module: mod, Hash: h}))
	return mod
}

func (c *client) putImage(image []byte) modcache.Hash {
	c.t.Helper()
	if r := c.offerImage(image); r != 0 {
		c.t.Fatalf("module_put: %d", r)
	}
	return hashOf(image)
}

func (c *client) offerImage(image []byte) cuda.CUresult {
	c.t.Helper()
	p := wire.ModulePut{Hash: hashOf(image), Bytes: uint64(len(image))}
	m := c.await(c.start(0, wire.OpModulePut, transport.FlagBulk, append(bytes.Clone(wire.Bytes(&p)), words(p.Bytes)...),
		image))
	return cuda.CUresult(m.Result)
}

// function gives a kernel's handle and its parameter offsets.
func (c *client) function(parent uint64, name string, kind uint32) (uint64, []uint32) {
	c.t.Helper()
	h := c.newHandle()
	p := wire.GetFunction{Parent: parent, Handle: h, NameBytes: uint32(len(name) + 1), Kind: kind}
	reply := c.must(wire.OpGetFunction, append(bytes.Clone(wire.Bytes(&p)), name+"\x00"...))
	info, rest, ok := wire.View[wire.FuncInfo](reply)
	if !ok {
		c.t.Fatal("short func_info")
	}
	var offsets []uint32
	for i := range info.ParamCount {
		offsets = append(offsets, binary.LittleEndian.Uint32(rest[8*i:]))
	}
	return h, offsets
}

func (c *client) launch(f, stream uint64, grid, block uint32, params []byte) {
	c.t.Helper()
	p := wire.Launch{
		Func: f, Stream: stream, Grid: [3]uint32{grid, 1, 1}, Block: [3]uint32{block, 1, 1}, ParamBytes: uint32(len(params)),
	}
	c.send(wire.OpLaunch, append(bytes.Clone(wire.Bytes(&p)), params...))
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
	return b
}

func same(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < len(got) && i < len(want) && got[i] == want[i] {
			i++
		}
		t.Fatalf("%d and %d bytes differ from byte %d on", len(got), len(want), i)
	}
}

func kernels(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("../../testdata/kernels/kernels.ptx")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, 0)
}

func gone(err error) bool { return errors.Is(err, ErrGone) || err == nil }
