package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/mps/mpstest"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/transport"
)

const workerEnv = "SCUDA_TEST_WORKER"

// TestMain makes the test binary a worker when the supervisor under test starts it as one.
func TestMain(m *testing.M) {
	mpstest.Main()
	var err error
	args := append(os.Args, "", "")
	switch mode := os.Getenv(workerEnv); {
	case args[1] == "spawner": // as spawner.Launch starts it
		err = spawner.Inherited(context.Background(), args[3])
	case args[1] == "worker" && mode == "":
		err = Worker(context.Background())
	case args[1] == "worker" && mode == "few addresses": // enough for a driver
		if err = unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 1 << 45, Max: 1 << 45}); err == nil {
			err = Worker(context.Background())
		}
	case args[1] == "keeper":
		err = keep(args[2])
	case args[1] == "supervisor":
		err = supervise(args[2])
	case mode == "":
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch os.Getenv(workerEnv) {
	case "die":
		os.Exit(7)
	case "hang":
		fmt.Fprintln(os.Stderr, ".")
		select {}
	}
}

const patience = 2 * time.Minute

// logBuffer is a log that tests look into.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type testServer struct {
	forTLS
	t       *testing.T
	addr    string
	token   []byte
	metrics string // URL of the metrics port
	log     *logBuffer
	stop    context.CancelFunc
	err     chan error
}

func serve(t *testing.T, change func(*Config)) *testServer {
	t.Helper()
	log := &logBuffer{}
	ready := make(chan Status, 1)
	cfg := Config{Addr: "127.0.0.1:0", GPU: "sim", SimMemory: 64 << 20, Sim: "contents=process", CacheDir: "none",
		Drain: -1, Stderr: log,
		Log:      slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Ready:    func(s Status) { ready <- s },
		SameUser: true, Workers: spawner.Config{Cgroup: spawner.CgroupNone}}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &testServer{t: t, log: log, stop: cancel, err: make(chan error, 1)}
	go func() { s.err <- Serve(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := s.wait(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	select {
	case st := <-ready:
		s.addr = st.Addr.String()
		if st.Metrics != nil {
			s.metrics = "http://" + st.Metrics.String()
		}
	case err := <-s.err:
		t.Fatalf("does not serve: %v", err)
	case <-time.After(patience):
		t.Fatal("does not get ready")
	}
	return s
}

func (s *testServer) wait() error {
	select {
	case err := <-s.err:
		s.err <- err
		return err
	case <-time.After(patience):
		s.t.Fatal("the server does not stop")
		return nil
	}
}

func (s *testServer) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			s.t.Fatalf("never: %s", what)
		}
	}
}

func (s *testServer) logged(text string) {
	s.t.Helper()
	s.until("log: "+text, func() bool { return strings.Contains(s.log.String(), text) })
}

func hello(kind string) *transport.Hello {
	return &transport.Hello{
		Kind: kind, Version: "test", Digest: cuda.Digest, Program: "test", ClientBase: 1 << 36, ClientSlots: 1 << 12,
		ServerBase: 1 << 37, ServerSlots: 1 << 12}
}

// link is a client's main connection, one call at a time.
type link struct {
	t       *testing.T
	conn    net.Conn
	welcome *transport.Welcome
	notices []string
	seq     uint64
	heard   uint64 // bytes of its stream, where it has records
}

func (s *testServer) dial(h *transport.Hello) (*link, error) {
	c, w, err := transport.DialNet(context.Background(), s.target(), h)
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { c.Close() })
	return &link{t: s.t, conn: c, welcome: w}, nil
}

func (s *testServer) open(kind string) *link {
	s.t.Helper()
	l, err := s.dial(hello(kind))
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

func command(op uint16, ctx uint64, payload []byte) []byte {
	size := transport.CommandHeaderSize + transport.Pad(len(payload))
	b := transport.FrameHeader{Len: uint32(size)}.Append(nil)
	b = transport.CommandHeader{Size: uint32(size), Op: op, Flags: transport.FlagAnswer, Context: ctx}.Append(b)
	return append(append(b, payload...), make([]byte, transport.Pad(len(payload))-len(payload))...)
}

var errLost = errors.New("connection lost")

// next is the next command of the connection.
func (l *link) next(op uint16, ctx uint64, payload []byte) []byte {
	b := command(op, ctx, payload)
	binary.LittleEndian.PutUint64(b[transport.FrameHeaderSize+8:], l.seq)
	l.seq += uint64(len(b) - transport.FrameHeaderSize)
	return b
}

// leave ends a session in order.
func (l *link) leave() {
	if _, _, err := l.call(wire.OpBye, 0, make([]byte, 8)); err != nil {
		l.t.Error(err)
	}
	l.conn.Close()
}

// say sends a command without a payload of interest, and waits for no answer.
func (l *link) say(op uint16) {
	if _, err := l.conn.Write(l.next(op, 0, make([]byte, 8))); err != nil {
		l.t.Error(err)
	}
}

func (l *link) call(op uint16, ctx uint64, payload []byte) (int32, []byte, error) {
	_ = l.conn.SetDeadline(time.Now().Add(patience))
	if _, err := l.conn.Write(l.next(op, ctx, payload)); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errLost, err)
	}
	for {
		h, b, err := l.message()
		if err != nil {
			return 0, nil, err
		}
		if h.Type == transport.MsgReply {
			return h.Result, b, nil
		}
	}
}

func (l *link) message() (transport.MessageHeader, []byte, error) {
	_ = l.conn.SetReadDeadline(time.Now().Add(patience))
	head := make([]byte, transport.MessageHeaderSize)
	if _, err := io.ReadFull(l.conn, head); err != nil {
		return transport.MessageHeader{}, nil, fmt.Errorf("%w: %w", errLost, err)
	}
	h, _, err := transport.ParseMessage(head)
	if err != nil {
		return h, nil, err
	}
	b := make([]byte, transport.Pad(int(h.Len)))
	if _, err := io.ReadFull(l.conn, b); err != nil {
		return h, nil, fmt.Errorf("%w: %w", errLost, err)
	}
	if h.Type == transport.MsgNotice {
		l.notices = append(l.notices, string(b[:h.Len]))
	}
	return h, b[:h.Len], nil
}

// use retains the primary context and allocates n bytes of GPU memory.
func (l *link) use(n uint64) {
	l.t.Helper()
	const ctx = 1 << 36
	if r, _, err := l.call(wire.OpPrimary, 0, wire.Bytes(&wire.Primary{Context: ctx})); r != 0 || err != nil {
		l.t.Fatalf("primary context: %d %v", r, err)
	}
	r, b, err := l.call(
		cuda.OpCuMemAlloc_v2, ctx, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), n))
	if r != 0 || err != nil || len(b) != 16 {
		l.t.Fatalf("allocation: %d %v", r, err)
	}
}

func (l *link) alive() bool {
	r, _, err := l.call(wire.OpPing, 0, make([]byte, 8))
	return r == 0 && err == nil
}
