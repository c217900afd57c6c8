package main

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/shim/connect"
	"scuda.dev/scuda/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair gives the front's end and ours, which closes by itself.
func pair(t *testing.T) (front int, own uintptr) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(ends[1]) })
	return ends[0], uintptr(ends[1])
}

func request(keep uint32, first string) []byte {
	r := connect.Request{ABI: connect.ABI, PID: 42, Keep: keep, First: uint32(len(first))}
	connect.SetText(r.Kind[:], transport.KindNVML)
	connect.SetText(r.Digest[:], "d1")
	connect.SetText(r.Program[:], "prog")
	return append(r.Append(nil), first...)
}

// server takes one connection, answers its greeting and gives what was said first.
func server(t *testing.T, status transport.Status) (address string, got chan string) {
	t.Helper()
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got = make(chan string, 1)
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		defer c.Close()
		h, err := transport.ReadPreface(c, nil)
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := transport.AppendWelcome(nil, &transport.Welcome{Status: status, DriverVersion: 13000, Error: "because"})
		_, _ = c.Write(b)
		rest, _ := io.ReadAll(c)
		got <- strings.Join([]string{h.Kind, h.Digest, h.Program, string(rest)}, " ")
	}()
	return l.Addr().String(), got
}

func settings(t *testing.T, server string) {
	t.Setenv("SCUDA_SERVER", server)
	t.Setenv("SCUDA_TOKEN", "")
	t.Setenv("SCUDA_FINGERPRINT", "")
	t.Setenv("SCUDA_TOKEN_FILE", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
}

// exchange sends a request and gives the answer and the connection that came with it, nil for none.
func exchange(t *testing.T, packet []byte) (*connect.Answer, net.Conn) {
	t.Helper()
	front, own := pair(t)
	defer unix.Close(front)
	if err := unix.Send(front, packet, 0); err != nil {
		t.Fatal(err)
	}
	if err := serve(own, func() {}); err != nil {
		t.Fatal(err)
	}
	return take(t, front)
}

// take gives what exchange gives, of a request that is being answered.
func take(t *testing.T, front int) (*connect.Answer, net.Conn) {
	t.Helper()
	b, rights := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4))
	n, k, _, _, err := unix.Recvmsg(front, b, rights, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := connect.ParseAnswer(b[:n])
	if err != nil {
		t.Fatal(err)
	}
	if k == 0 {
		return a, nil
	}
	list, err := unix.ParseSocketControlMessage(rights[:k])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return a, c
}

func TestConnection(t *testing.T) {
	address, got := server(t, transport.StatusOK)
	settings(t, " "+address+" ")
	a, c := exchange(t, request(1, "first,"))
	if a.Code != connect.OK || a.DriverVersion != 13000 || connect.Text(a.Server[:]) != address ||
		connect.Text(a.Error[:]) != "" || c == nil {
		t.Fatalf("%d, %d, %q, %q, %v", a.Code, a.DriverVersion, connect.Text(a.Server[:]), connect.Text(a.Error[:]), c)
	}
	if _, err := io.WriteString(c, "second"); err != nil {
		t.Error(err)
	}
	c.Close()
	if text := <-got; text != "nvml d1 prog first,second" {
		t.Errorf("the server has got %q", text)
	}
}

// Of several servers the one that is asked for is connected to, and the front learns how many there are.
func TestOneOfSeveral(t *testing.T) {
	if connect.MostServers != config.MostServers {
		t.Errorf("%d servers at most, not %d", connect.MostServers, config.MostServers)
	}
	address, got := server(t, transport.StatusOK)
	settings(t, "127.0.0.1:1,"+address)
	r, first, err := connect.ParseRequest(request(1, "first"))
	if err != nil {
		t.Fatal(err)
	}
	r.Number = 1
	a, c := exchange(t, append(r.Append(nil), first...))
	if a.Code != connect.OK || a.Servers != 2 || connect.Text(a.Server[:]) != address || c == nil {
		t.Fatalf("%d, %d servers, %q, %q", a.Code, a.Servers, connect.Text(a.Server[:]), connect.Text(a.Error[:]))
	}
	c.Close()
	if text := <-got; text != "nvml d1 prog first" {
		t.Errorf("the server has got %q", text)
	}
	r.Number = 2
	a, _ = exchange(t, append(r.Append(nil), first...))
	if a.Code != connect.Failed || !strings.Contains(connect.Text(a.Error[:]), "there is no server 2") {
		t.Errorf("%d, %q", a.Code, connect.Text(a.Error[:]))
	}
}

func TestOnlyTheAnswer(t *testing.T) {
	address, got := server(t, transport.StatusOK)
	settings(t, address)
	if a, c := exchange(t, request(0, "")); a.Code != connect.OK || a.DriverVersion != 13000 || c != nil {
		t.Errorf("%d, %q, %v", a.Code, connect.Text(a.Error[:]), c)
	}
	if text := <-got; text != "nvml d1 prog " { // and the connection is closed
		t.Errorf("the server has got %q", text)
	}
}

func TestFailures(t *testing.T) {
	refusing, got := server(t, transport.StatusBusy)
	for name, c := range map[string]struct {
		server, want string
		packet       []byte
	}{
		"no room":       {refusing, "has no room for another session: because", request(1, "")},
		"no server":     {"", "no server is configured", request(1, "")},
		"bad address":   {"a b", "the address has characters that no host name has", request(1, "")},
		"nobody":        {"127.0.0.1:1", "the connection was refused", request(1, "")},
		"another build": {refusing, "different builds", make([]byte, len(request(1, "")))},
		"garbage":       {refusing, "malformed packet", []byte("garbage")},
	} {
		t.Run(name, func(t *testing.T) {
			settings(t, c.server)
			code := connect.Failed
			if name == "no room" {
				code = connect.Busy
			}
			if a, conn := exchange(t, c.packet); a.Code != code ||
				!strings.Contains(connect.Text(a.Error[:]), c.want) || conn != nil {
				t.Errorf("%d, %q, %v", a.Code, connect.Text(a.Error[:]), conn)
			}
		})
	}
	<-got
}

// TestFrontGone: whose front has gone gives up at once.
func TestFrontGone(t *testing.T) {
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	settings(t, l.Addr().String())
	front, own := pair(t)
	if err := unix.Send(front, request(1, ""), 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serve(own, func() {}) }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	unix.Close(front)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it still waits for the server")
	}
}
