package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// TestMain builds the library and the C program that drives it.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "core")
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	library, client = filepath.Join(dir, "libscuda-core.so"), filepath.Join(dir, "client")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var library, client string

func build(dir string) error {
	compat, err := filepath.Abs("../front/base/compat.h")
	if err != nil {
		return err
	}
	for _, c := range []*exec.Cmd{
		exec.Command("go", "build", "-buildmode=c-shared", "-tags", "netgo,osusergo", "-ldflags",
			"-s -w -X runtime.godebugDefault=asyncpreemptoff=1 -extldflags=-Wl,--wrap=_cgo_try_pthread_create",
			"-o", filepath.Join(dir, "libscuda-core.so"), "."),
		exec.Command("cc", "-O1", "-Wall", "-Werror", "-o", filepath.Join(dir, "client"), "testdata/client.c", "-ldl",
			"-lpthread"),
	} {
		c.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -include "+compat)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", c.Args, err, out)
		}
	}
	return nil
}

// server answers the C program: operation 1 echoes, 2 runs a host function first, 3 waits for the callback connection,
// 4 drops the session.
func server(t *testing.T) string {
	t.Helper()
	l, err := transport.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	callback := make(chan *net.TCPConn, 1)
	serve := func(c *net.TCPConn) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		hello, err := transport.ReadPreface(c, []byte("token"))
		w := transport.Welcome{
			Status: transport.StatusOf(err), Session: "s", DriverVersion: 13000, Devices: []transport.Device{{Name: "test GPU"}},
		}
		w.Devices[0].Attributes[75] = 9
		b, merr := transport.AppendWelcome(nil, &w)
		if merr != nil {
			t.Error(merr)
		}
		_, _ = c.Write(b)
		if err != nil {
			return
		}
		if hello.Kind == transport.KindCallback {
			callback <- c
			_, _ = io.Copy(io.Discard, blocker{c, t.Context()})
			return
		}
		commands(c, callback)
	}
	wg.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// blocker keeps a connection open without reading it until the test ends.
type blocker struct {
	net.Conn
	ctx context.Context
}

func (b blocker) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, io.EOF }

func commands(c *net.TCPConn, callback chan *net.TCPConn) {
	r := bufio.NewReader(c)
	var chain, asked transport.Chain
	for {
		b := make([]byte, transport.FrameHeaderSize)
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		f, _, err := transport.ParseFrame(b)
		if err != nil {
			return
		}
		b = make([]byte, f.Len)
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		for len(b) > 0 {
			h, payload, err := transport.ParseCommand(b)
			if err != nil {
				return
			}
			b = b[h.Size:]
			switch h.Op {
			case 2:
				s := <-callback
				run := transport.MessageHeader{Type: transport.MsgRun, Aux: payloadValue(payload)}.Append(nil)
				asked.Number(run)
				_, _ = s.Write(run)
				if _, err := io.ReadFull(s, make([]byte, transport.MessageHeaderSize)); err != nil {
					return
				}
			case 4:
				return
			}
			if h.Flags&transport.FlagAnswer != 0 {
				reply := transport.MessageHeader{
					Len: uint32(len(payload)), Type: transport.MsgReply, ID: h.Thread, Seq: h.Seq,
				}
				reply.Flags = chain.Next(&reply)
				_, _ = c.Write(append(reply.Append(nil), payload...))
			}
		}
	}
}

func payloadValue(b []byte) uint64 { return uint64(b[0]) | uint64(b[1])<<8 }

// drive runs the C program and gives its lines and what it wrote to stderr.
func drive(t *testing.T, scenario string, env ...string) (string, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, client, library, scenario)
	c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	return string(out), stderr.String()
}

func TestScenarios(t *testing.T) {
	const open = "open 0\ndriver 13000 devices 1 name test GPU cc 9\n"
	for _, c := range []struct{ scenario, out, log string }{
		{"calls", "calls done, 0 preemption signals\nafter close 4\n", ""},
		{"host", "overlaps 1\nran 42 overlaps 0\nafter close 4\n", ""},
		{"fork", "child has 0 sockets\nparent has 2 sockets\nafter close 4\n", ""},
		{"lost", "call 46\ncall 46 lost 46\nafter close 46\n", "is lost: the server"},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			out, log := drive(t, c.scenario, "SCUDA_SERVER="+server(t), "SCUDA_TOKEN=token")
			if out != open+c.out {
				t.Errorf("printed\n%sexpected\n%s", out, open+c.out)
			}
			if !strings.Contains(log, c.log) || c.log == "" && log != "" || strings.Count(log, "\n") > 1 {
				t.Errorf("log %q, expected %q", log, c.log)
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	for _, c := range []struct {
		name, log string
		env       []string
	}{
		{"no server", "no server is configured", nil},
		{"bad address", "HOST:PORT", []string{"SCUDA_SERVER=a b"}},
		{"refused", "the connection was refused", []string{"SCUDA_SERVER=127.0.0.1:1"}},
		{"wrong token", "refused the token", []string{"SCUDA_SERVER=" + server(t), "SCUDA_TOKEN=other"}},
		{"no token file", "missing", []string{"SCUDA_SERVER=127.0.0.1:1", "SCUDA_TOKEN_FILE=/missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, log := drive(t, "calls", c.env...)
			if out != "open 802\n" || !strings.Contains(log, c.log) || strings.Count(log, "\n") != 1 {
				t.Errorf("printed %q, log %q; expected 802 and one line with %q", out, log, c.log)
			}
		})
	}
}

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if _, log := drive(t, "calls", "SCUDA_SERVER=127.0.0.1:1", "SCUDA_LOG=debug,file="+path); log != "" {
		t.Errorf("stderr has %q", log)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "refused") {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// The library has to load on systems with glibc 2.31, and exports what core.h says.
func TestSymbols(t *testing.T) {
	out, err := exec.Command("objdump", "-T", library).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`GLIBC_2\.(3[2-9]|[4-9]\d)\)? +(\S+)`).FindAllStringSubmatch(string(out), -1) {
		t.Errorf("%s needs glibc 2.%s", m[2], m[1])
	}
	header, err := os.ReadFile("../front/base/core.h")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`typedef .*\(\*(scuda_core_\w+)_fn\)`).FindAllStringSubmatch(string(header), -1)
	if len(names) < 8 {
		t.Fatalf("only %d functions in core.h", len(names))
	}
	for _, n := range names {
		if !regexp.MustCompile(`\b` + n[1] + `\n`).Match(out) {
			t.Errorf("%s is not exported", n[1])
		}
	}
}
