package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A faulting kernel gives 700 to its own process, for good; a client beside it and the next one notice nothing.
func TestFaultIsOnesOwn(t *testing.T) {
	s := serve(t)
	other := s.client(t, "bystander")
	other.await(other.out, "^ready$")
	out := s.run(t, "fault")
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if !strings.HasSuffix(line, "= 700") && !strings.Contains(line, "cuDevicePrimaryCtxGetState") {
			t.Errorf("call %d after the fault: %s", i, line)
		}
	}
	s.run(t, "compute")
	other.stdin.Close()
	if code := other.wait(patience); code != 0 {
		t.Errorf("the bystander suffered: exit status %d\n%s%s", code, other.out, other.err)
	}
}

// workers gives the server's worker processes, which a spawner may have started.
func (s *server) workers(t *testing.T) (list []int) {
	t.Helper()
	for _, pid := range tree(t, s.cmd.Process.Pid) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if strings.HasSuffix(string(text), "\x00worker\x00") {
			list = append(list, pid)
		}
	}
	return list
}

// closed counts the sessions that are over: their workers have ended and their places are free.
func (s *server) closed() int {
	log := s.err.String()
	return strings.Count(log, `msg="session closed"`) + strings.Count(log, `msg="session ended"`)
}

// A killed client's worker goes after 5 s, and with it all that the client held; its place is free again. One that is
// killed in the middle of a call may leave a reset connection behind, as a network does. Soon it has another one, which
// is closed in order; before that the session is too young to be waited for.
func TestKilledClient(t *testing.T) {
	const mib = 512
	for name, c := range map[string]struct {
		grace       string
		env, more   []string
		connections int // that it has when it is killed
	}{
		"without resuming":              {env: []string{"SCUDA_RESUME=0"}, grace: "1h", more: []string{"loop"}},
		"idle":                          {grace: "1h"},
		"soon, in the middle of a call": {grace: "1h", more: []string{"loop"}},
		"later":                         {grace: "1h", more: []string{"loop"}, connections: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			s := serve(t, "--max-sessions", "1", "--grace", c.grace)
			var first int64 // bytes free before there was a client
			for i := range 2 {
				p := start(t, s.env(c.env...), program("hold"),
					append([]string{kernels, strconv.Itoa(mib)}, c.more...)...)
				free, _ := strconv.ParseInt(p.await(p.out, `^free (\d+)$`)[1], 10, 64)
				if first == 0 {
					first = free
				}
				if first-free > mib<<20/2 {
					t.Errorf("%d bytes were free for the first client, %d for a later one", first, free)
				}
				p.await(p.out, "^ready$")
				eventually(t, patience, "the client has its connections", func() bool {
					return s.connections(t) >= c.connections
				})
				p.signal(syscall.SIGKILL)
				p.wait(patience)
				eventually(t, patience, "the killed client's session is closed", func() bool { return s.closed() == i+1 })
			}
			s.run(t, "hold", strconv.Itoa(mib))
		})
	}
}

// connections are how many clients have with the server.
func (s *server) connections(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(s.addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	const established = "01"
	return strings.Count(string(text), fmt.Sprintf(" 0100007F:%04X %s ", n, established)) // where the peer is the server
}

// Sessions above the limit are refused with a reason.
func TestMaxSessions(t *testing.T) {
	s := serve(t, "--max-sessions", "1")
	p := s.client(t, "hold", "1")
	p.await(p.out, "^ready$")
	refused := start(t, s.env("SCUDA_QUEUE=0"), program("init"))
	refused.wait(patience)
	if out := refused.out.String(); !strings.Contains(out, "cuInit = 802") {
		t.Errorf("got\n%s", out)
	}
	oneLine(t, refused, "room")
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// oneLine wants exactly one line on standard error, with all of the words.
func oneLine(t *testing.T, p *process, words ...string) {
	t.Helper()
	oneLineOf(t, p.err.String(), words...)
}

func oneLineOf(t *testing.T, text string, words ...string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("not one line on standard error but:\n%s", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in what the client says: %s", w, text)
		}
	}
}

func TestKilledServer(t *testing.T) {
	for _, victim := range []string{"supervisor", "worker"} {
		t.Run(victim, func(t *testing.T) {
			s := serve(t, "--grace", "1s")
			p := s.client(t, "hold", "8", "loop")
			p.await(p.out, "^ready$")
			if victim == "supervisor" {
				s.signal(syscall.SIGKILL)
			} else {
				for _, pid := range s.workers(t) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
			if out := p.out.String(); !strings.Contains(out, "error 46\nthen 46 46 46\n") {
				t.Errorf("got\n%s", out)
			}
			text := p.err.String()
			for victim == "supervisor" { // its worker may have told why it ends, and the client that it tries again
				first, rest, _ := strings.Cut(text, "\n")
				if !strings.Contains(first, "the server says: the server process is gone") &&
					!strings.Contains(first, "trying again") {
					break
				}
				text = rest
			}
			oneLineOf(t, text, "scuda", s.addr)
			if victim == "worker" {
				s.run(t, "init")
			}
		})
	}
}

// What a client says and answers when no session comes about.
func TestUnreachable(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guarded := serve(t, "--token-file", token)
	closed := listen(t, func(net.Conn) {})
	closed.Close()
	otherVersion := append([]byte("SCUDA\r\n\x1a"), binary.LittleEndian.AppendUint32(nil, 99)...)
	otherVersion = binary.LittleEndian.AppendUint32(otherVersion, 1)
	otherVersion = binary.LittleEndian.AppendUint32(otherVersion, 25)
	otherVersion = append(otherVersion, `{"error":"I am version 99"`[:25]...)
	tooLong := append([]byte("SCUDA\r\n\x1a"), 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	for name, c := range map[string]struct {
		addr  string
		env   []string
		words []string
	}{
		"refused":       {addr: closed.Addr().String(), words: []string{closed.Addr().String(), "refused"}},
		"unknown host":  {addr: "no-such-host.invalid:14833", words: []string{"no-such-host.invalid"}},
		"bad address":   {addr: "::::", words: []string{"::::"}},
		"garbage":       {addr: peer(t, bytes.Repeat([]byte("garbage\n"), 100)), words: []string{"not"}},
		"http":          {addr: peer(t, []byte("HTTP/1.1 400 Bad Request\r\n\r\n")), words: []string{"not"}},
		"half a frame":  {addr: peer(t, []byte("SCUDA\r\n\x1a\x01\x00")), words: []string{"clos"}},
		"closes":        {addr: peer(t, nil), words: []string{"clos"}},
		"too long":      {addr: peer(t, tooLong)},
		"other version": {addr: peer(t, otherVersion), words: []string{"version"}},
		"no token":      {addr: guarded.addr, words: []string{"token", "SCUDA_TOKEN"}},
		"wrong token": {addr: guarded.addr, env: []string{"SCUDA_TOKEN=wrong horse battery staple"},
			words: []string{"token"}},
		"lost token": {addr: guarded.addr, env: []string{"SCUDA_TOKEN_FILE=/no/such/file"},
			words: []string{"/no/such/file"}},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			p := start(t, clientEnv(c.addr, c.env...), program("init"))
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
			if out := p.out.String(); !strings.HasPrefix(out, "cuInit = 802\ncuInit = 802\n") {
				t.Errorf("got\n%s", out)
			}
			oneLine(t, p, append(c.words, "scuda")...)
		})
	}
	t.Run("right token", func(t *testing.T) {
		for _, env := range []string{"SCUDA_TOKEN=correct horse battery staple", "SCUDA_TOKEN_FILE=" + token} {
			p := start(t, guarded.env(env), program("init"))
			p.wait(patience)
			if out := p.out.String(); !strings.HasPrefix(out, "cuInit = 0\n") {
				t.Errorf("with %s:\n%s%s", env, out, p.err)
			}
		}
	})
}

func listen(t *testing.T, serve func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l
}

// peer is a server that answers every connection with these bytes and closes.
func peer(t *testing.T, answer []byte) string {
	return listen(t, func(c net.Conn) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = c.Read(make([]byte, 4096))
		_, _ = c.Write(answer)
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}).Addr().String()
}

// A peer that opens a session and then sends garbage, or that stops in the middle, ends its own session at most.
func TestGarbageToServer(t *testing.T) {
	s := serve(t)
	other := s.client(t, "bystander")
	other.await(other.out, "^ready$")
	magic := []byte("SCUDA\r\n\x1a")
	hello := func(kind string) []byte {
		text := fmt.Sprintf(`{"Kind":%q,"Version":"test"}`, kind)
		b := binary.LittleEndian.AppendUint32(bytes.Clone(magic), 1)
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
		return append(b, text...)
	}
	for name, data := range map[string][]byte{
		"nothing":        {},
		"text":           []byte("GET / HTTP/1.0\r\n\r\n"),
		"half a magic":   magic[:5],
		"magic":          magic,
		"endless token":  append(bytes.Clone(magic), 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff),
		"long hello":     append(bytes.Clone(magic), 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f),
		"bad json":       append(bytes.Clone(magic), 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, '{', '{', '{'),
		"unknown kind":   hello("coffee"),
		"info, garbage":  append(hello("info"), bytes.Repeat([]byte{0xA5}, 4096)...),
		"nvml, garbage":  append(hello("nvml"), bytes.Repeat([]byte{0x5A}, 4096)...),
		"cuda, garbage":  append(hello("cuda"), bytes.Repeat([]byte{0xC3}, 4096)...),
		"side, nowhere":  hello("side"),
		"old version":    append(bytes.Clone(magic), 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, '{', '}'),
		"mere zeros":     make([]byte, 100000),
		"half a preface": hello("cuda")[:25],
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = c.Write(data) // the server may close before it has read all
			_ = c.(*net.TCPConn).CloseWrite()
			if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
				t.Error("the server keeps the connection open")
			}
		})
	}
	s.run(t, "compute")
	other.stdin.Close()
	if code := other.wait(patience); code != 0 {
		t.Errorf("the bystander suffered: exit status %d\n%s%s", code, other.out, other.err)
	}
	const warm = 2 // one for CUDA, one for NVML
	eventually(t, patience, "only the warm workers are left", func() bool {
		return s.closed() == strings.Count(s.err.String(), `msg="session opened"`) && len(s.workers(t)) <= warm
	})
}

// A module cache that cannot be written is one warning; modules are then kept in memory.
func TestUnusableCache(t *testing.T) {
	// with user ids for tenants modules lie in their folders
	s := serve(t, "--cache-dir", "/proc/no/such/place", "--worker-uids", "none")
	s.run(t, "compute")
	if log := s.err.String(); !strings.Contains(log, "/proc/no/such/place") {
		t.Errorf("the server's log does not name the folder:\n%s", log)
	}
}

// SIGTERM: no new sessions, running ones finish, the server ends with success.
func TestDrain(t *testing.T) {
	s := serve(t)
	p := s.client(t, "bystander")
	p.await(p.out, "^ready$")
	s.signal(syscall.SIGTERM)
	s.await(s.err, `msg=draining`)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("the running client suffered: exit status %d\n%s%s", code, p.out, p.err)
	}
	if code := s.wait(patience); code != 0 {
		t.Errorf("the server ended with status %d", code)
	}
}
