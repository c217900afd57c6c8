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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/nvmldispatch"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/transport"
)

func TestSessionsTogether(t *testing.T) {
	s := serve(t, nil)
	a, b := s.open(transport.KindCUDA), s.open(transport.KindCUDA)
	if a.welcome.GPU != "sim" || len(a.welcome.Devices) != 1 || a.welcome.DriverVersion == 0 ||
		a.welcome.Session == b.welcome.Session {
		t.Fatalf("welcome %+v", a.welcome)
	}
	a.use(48 << 20) // each has the whole simulated GPU to itself
	b.use(48 << 20)
	a.leave()
	if !b.alive() {
		t.Fatal("the other session ended too")
	}
	s.logged("session closed")
}

func TestInfo(t *testing.T) {
	l := serve(t, nil).open(transport.KindInfo)
	if len(l.welcome.Devices) != 1 || l.welcome.Digest != cuda.Digest {
		t.Fatalf("welcome %+v", l.welcome)
	}
	for _, text := range []string{"", "x", "12345678", "echo this"} {
		h := transport.MessageHeader{Type: transport.MsgPing, Len: uint32(len(text)), Seq: 5}
		b := append(h.Append(nil), text...)
		if _, err := l.conn.Write(append(b, make([]byte, transport.Pad(len(text))-len(text))...)); err != nil {
			t.Fatal(err)
		}
		got, payload, err := l.message()
		if err != nil || got.Type != transport.MsgPong || got.Seq != 5 || string(payload) != text {
			t.Fatalf("ping %q: %+v %q %v", text, got, payload, err)
		}
	}
}

func TestNVML(t *testing.T) {
	l := serve(t, nil).open(transport.KindNVML)
	if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
		t.Fatalf("nvmlInitWithFlags: %d %v", r, err)
	}
	r, b, err := l.call(nvml.OpNvmlDeviceGetCount_v2, 0, binary.LittleEndian.AppendUint64(nil, 1))
	if r != 0 || err != nil || len(b) != 16 || binary.LittleEndian.Uint32(b[8:]) != 1 {
		t.Fatalf("nvmlDeviceGetCount_v2: %d %x %v", r, b, err)
	}
	if _, _, err := l.call(0xffff, 0, nil); !errors.Is(err, errLost) || len(l.notices) != 1 {
		t.Fatalf("unknown operation: %v, notices %q", err, l.notices)
	}
}

func TestRefusals(t *testing.T) {
	s := serve(t, func(c *Config) { c.Token = []byte("correct horse"); c.MaxSessions = 1 })
	dial := func(token string, change func(*transport.Hello)) error {
		h := hello(transport.KindCUDA)
		change(h)
		c, _, err := transport.DialNet(context.Background(), transport.Target{Address: s.addr, Token: []byte(token)}, h)
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}
	const good = "correct horse"
	for _, c := range []struct {
		name   string
		err    error
		token  string
		change func(*transport.Hello)
	}{
		{"wrong token", transport.ErrToken, "wrong", func(*transport.Hello) {}},
		{"no token", transport.ErrToken, "", func(*transport.Hello) {}},
		{"other digest", transport.ErrDigest, good, func(h *transport.Hello) { h.Digest = "00" }},
		{"unknown kind", transport.ErrNotScuda, good, func(h *transport.Hello) { h.Kind = "telepathy" }},
		{"unknown session", transport.ErrSession, good,
			func(h *transport.Hello) { h.Kind, h.Session = transport.KindCallback, "ff" }},
		{"first", nil, good, func(*transport.Hello) {}},
		{"second", transport.ErrBusy, good, func(*transport.Hello) {}},
	} {
		if err := dial(c.token, c.change); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
}

// TestOtherReleases: a client of another release is served where both speak a version and the server has what the
// client needs, and is else refused by name: of both releases, of what is missing, and with the remedy.
func TestOtherReleases(t *testing.T) {
	s := serve(t, nil)
	const remedy = "install the same scuda release on both machines"
	server := "this server (scuda " + release.Version() + ")"
	for _, c := range []struct {
		name   string
		err    error
		says   []string
		change func(*transport.Hello)
	}{
		{"a newer release that speaks this version too", nil, nil,
			func(h *transport.Hello) { h.MinVersion, h.MaxVersion = transport.Version, transport.Version+3 }},
		{"a newer release that does not", transport.ErrVersion,
			[]string{"client (scuda 9.9) speaks protocol versions 2 to 4", server, "version 1"},
			func(h *transport.Hello) { h.MinVersion, h.MaxVersion = transport.Version+1, transport.Version+3 }},
		{"another description", transport.ErrDigest, []string{"client 9.9 has API description 00", release.Version()},
			func(h *transport.Hello) { h.Digest = "00" }},
		{"needs a capability", transport.ErrCapability, []string{server, `"tea"`},
			func(h *transport.Hello) { h.Requires = []string{"tea"} }},
		{"has more capabilities", nil, nil,
			func(h *transport.Hello) { h.Capabilities = []string{"coffee", transport.CapCorrelation} }},
	} {
		h := hello(transport.KindCUDA)
		h.Version = "9.9"
		c.change(h)
		l, err := s.dial(h)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
			continue
		}
		if err != nil {
			for _, text := range append(c.says, remedy) {
				if strings.Count(err.Error(), text) != 1 {
					t.Errorf("%s: %q does not say %q once", c.name, err, text)
				}
			}
			continue
		}
		w := l.welcome
		if w.Protocol != transport.Version || w.MaxVersion != transport.Version ||
			!slices.Equal(w.Capabilities, transport.Offered()) || !l.alive() {
			t.Errorf("%s: welcomed with version %d (%d to %d) and %q", c.name, w.Protocol, w.MinVersion, w.MaxVersion,
				w.Capabilities)
		}
		l.conn.Close()
	}
}

// firstPing is a PING that opens a callback connection.
func firstPing(seq uint64) []byte {
	b := transport.MessageHeader{Type: transport.MsgPing, Seq: seq}.Append(nil)
	new(transport.Chain).Number(b)
	return b
}

func TestCallbackConnection(t *testing.T) {
	s := serve(t, nil)
	l := s.open(transport.KindCUDA)
	h := hello(transport.KindCallback)
	h.Session, h.Secret, h.Purpose = l.welcome.Session, strings.Repeat("0", 32), h.Kind
	if _, err := s.dial(h); !errors.Is(err, transport.ErrSession) {
		t.Fatalf("wrong secret: %v", err)
	}
	h.Secret = l.welcome.Secret
	callback, err := s.dial(h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := callback.conn.Write(firstPing(9)); err != nil {
		t.Fatal(err)
	}
	if m, _, err := callback.message(); err != nil || m.Type != transport.MsgPong || m.Seq != 9 {
		t.Fatalf("ping over the callback connection: %+v %v", m, err)
	}
}

func TestGarbageAndHalfPrefaces(t *testing.T) {
	s := serve(t, nil)
	preface, err := transport.AppendPreface(nil, nil, hello(transport.KindCUDA))
	if err != nil {
		t.Fatal(err)
	}
	version := bytes.Clone(preface)
	version[8] = 99
	var wg sync.WaitGroup
	for name, x := range map[string]struct {
		bytes  []byte
		status transport.Status
	}{
		"HTTP":          {[]byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"), transport.StatusMalformed},
		"zeros":         {make([]byte, 4096), transport.StatusMalformed},
		"other version": {version, transport.StatusVersion},
		"half":          {preface[:len(preface)-5], transport.StatusFailed}, // after the time for the preface
		"nothing":       {nil, transport.StatusFailed},
	} {
		wg.Go(func() {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Write(x.bytes); err != nil {
				t.Error(err)
			}
			w, err := transport.ReadWelcome(c)
			if err != nil || w.Status != x.status || w.Error == "" {
				t.Errorf("%s: answered %+v, %v; want status %d", name, w, err, x.status)
			}
		})
	}
	wg.Wait()
	if !s.open(transport.KindCUDA).alive() {
		t.Error("does not serve any more")
	}
}

func workers(t *testing.T) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for w := range strings.FieldsSeq(string(b)) {
			var pid int
			if _, err := fmt.Sscan(w, &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// workerOf finds a session's worker by the log.
func (s *testServer) workerOf(l *link) int {
	s.t.Helper()
	var pid int
	s.until("the session is logged", func() bool {
		for line := range strings.Lines(s.log.String()) {
			if strings.Contains(line, `"session opened"`) && strings.Contains(line, "session="+l.welcome.Session) {
				_, rest, _ := strings.Cut(line, "worker=")
				_, err := fmt.Sscan(rest, &pid)
				return err == nil
			}
		}
		return false
	})
	return pid
}

func TestKilledWorker(t *testing.T) {
	s := serve(t, nil)
	l, other := s.open(transport.KindCUDA), s.open(transport.KindCUDA)
	l.use(1 << 20)
	other.use(1 << 20)
	if err := syscall.Kill(s.workerOf(l), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.message(); !errors.Is(err, errLost) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the client learns nothing: %v", err)
	}
	s.logged("crashed")
	if !other.alive() || !s.open(transport.KindCUDA).alive() {
		t.Error("other sessions suffer")
	}
}

func TestDeadClient(t *testing.T) {
	s := serve(t, nil)
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	pid := s.workerOf(l)
	l.conn.Close()
	s.until("the worker ends", func() bool { return syscall.Kill(pid, 0) != nil })
}

func TestDrain(t *testing.T) {
	s := serve(t, func(c *Config) { c.Drain = patience })
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	s.stop()
	if h, b, err := l.message(); err != nil || h.Type != transport.MsgNotice || len(b) == 0 {
		t.Fatalf("no notice: %+v %q %v", h, b, err)
	}
	if _, err := s.dial(hello(transport.KindCUDA)); err == nil {
		t.Error("a draining server takes a session")
	}
	if !l.alive() {
		t.Fatal("the running session ended")
	}
	l.conn.Close()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
}

func TestDrainEndsSessionsAtLast(t *testing.T) {
	s := serve(t, func(c *Config) { c.Drain = 10 * time.Millisecond })
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	s.stop()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := l.message(); err != nil {
			break
		}
	}
	// one that was ready, or a test's before, may take a moment to end on a busy machine
	s.until("its processes are gone", func() bool { return len(workers(t)) == 0 })
}

func TestWorkersThatDoNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		mode, gpu, want string
	}{
		"exit":      {"die", "sim", "exit status 7"},
		"no driver": {"", "real", "libcuda"},
		"bad kind":  {"", "abacus", "abacus"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Serve(context.Background(), Config{
				Addr: "127.0.0.1:0", GPU: c.gpu, Library: "/nonexistent/libcuda.so.1", Stderr: io.Discard,
				Workers: spawner.Config{Env: []string{workerEnv + "=" + c.mode}}})
			if !errors.Is(err, ErrNoWorker) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestStopWhileWorkersStart(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	started, says := io.Pipe()
	go func() {
		done <- Serve(ctx, Config{
			Addr: "127.0.0.1:0", Stderr: says, Workers: spawner.Config{Env: []string{workerEnv + "=hang"}},
			Log: slog.New(slog.NewTextHandler(says, &slog.HandlerOptions{Level: slog.LevelError}))})
	}()
	if _, err := started.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	defer started.Close()
	go func() { _, _ = io.Copy(io.Discard, started) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("does not stop")
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = Serve(context.Background(), Config{Addr: l.Addr().String(), GPU: "sim"})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "choose another port") {
		t.Fatalf("got %v", err)
	}
}

func TestCheckAddress(t *testing.T) {
	for _, c := range []struct {
		addr     string
		token    string
		insecure bool
		ok       bool
	}{
		{"127.0.0.1:1", "", false, true},
		{"[::1]:1", "", false, true},
		{"localhost", "", false, true},
		{"0.0.0.0:14833", "", false, false},
		{"10.1.2.3:14833", "", false, false},
		{"[::]:14833", "", false, false},
		{"gpu.example.org:14833", "", false, false},
		{"0.0.0.0:14833", "sesame", false, true},
		{"0.0.0.0:14833", "", true, true},
	} {
		err := CheckAddress(c.addr, c.token != "", c.insecure)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInsecure) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ content, want string }{
		"plain":     {"0123456789\n", "0123456789"},
		"spaces":    {"  0123456789 \r\nsecond line", "0123456789"},
		"short":     {"abc\n", ""},
		"empty":     {"", ""},
		"too long":  {strings.Repeat("x", 513), ""},
		"not there": {"-", ""},
	} {
		path := filepath.Join(dir, name)
		if c.content != "-" {
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadToken(path)
		if string(got) != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrToken) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// slowNVML is a management library that takes its time.
type slowNVML struct {
	nvml.Driver
	leave chan struct{}
}

func (s slowNVML) NvmlInitWithFlags(uint32) nvml.NvmlReturn {
	<-s.leave
	return nvml.NVML_SUCCESS
}

func (slowNVML) NvmlShutdown() nvml.NvmlReturn { return nvml.NVML_SUCCESS }

// While the library is at work, the client gets signs of life, and its answer once that is there.
func TestSignsOfLifeOfNVML(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := transport.NewConn(fds[0], "the client")
	if err != nil {
		t.Fatal(err)
	}
	client := os.NewFile(uintptr(fds[1]), "client")
	leave, ended := make(chan struct{}), make(chan error)
	go func() {
		drv := nvmldispatch.New(slowNVML{leave: leave}, nvmldispatch.Options{})
		ended <- serveNVML(conn, drv, nil, time.Millisecond, &ender{fd: conn.FD()})
	}()
	h := transport.CommandHeader{Size: transport.CommandHeaderSize + 8, Op: nvml.OpNvmlInitWithFlags,
		Flags: transport.FlagAnswer}
	f := transport.FrameHeader{Len: h.Size}
	if _, err := client.Write(append(h.Append(f.Append(nil)), make([]byte, 8)...)); err != nil {
		t.Fatal(err)
	}
	chain := transport.Chain{}
	for signs := 0; ; {
		b := make([]byte, transport.MessageHeaderSize)
		if _, err := io.ReadFull(client, b); err != nil {
			t.Fatal(err)
		}
		m, _, err := transport.ParseMessage(b)
		if err == nil {
			err = chain.Check(&m)
		}
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == transport.MsgReply {
			if signs < 3 || m.Result != 0 {
				t.Errorf("%d signs of life before the answer %d", signs, m.Result)
			}
			break
		}
		if signs++; m.Type != transport.MsgAlive {
			t.Fatalf("%+v", m)
		}
		if signs == 3 {
			close(leave)
		}
	}
	client.Close()
	if err := <-ended; !errors.Is(err, executor.ErrEnded) {
		t.Error(err)
	}
}
