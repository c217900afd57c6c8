package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/resume"
)

// orders are what a server is told that is a process of its own, so that it can be killed.
type orders struct {
	Addr, Spawner, Admin, State, Tenants string
	Folder, MPS                          string // of workers, NVIDIA's control program; "": none
	Grace                                time.Duration
	Other                                bool // it is of another release
}

// announced is what such a server says once it serves.
type announced struct{ Addr, Metrics string }

// supervise is the main program of such a server.
func supervise(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	if o.Other {
		contract += " of another release"
	}
	cfg := Config{Addr: o.Addr, GPU: "sim", SimMemory: 64 << 20, Sim: "contents=process", CacheDir: "none", Drain: -1,
		SameUser: true, Spawner: o.Spawner, Admin: o.Admin, StateDir: o.State, Metrics: "127.0.0.1:0", Grace: o.Grace,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if o.MPS != "" {
		cfg.MPS, cfg.mpsControl = MPSOn, o.MPS
	}
	if o.Tenants != "" {
		var err error
		if cfg.Tenants, err = tenant.Read(tenant.Files{Tenants: o.Tenants}); err != nil {
			return err
		}
	}
	cfg.Ready = func(s Status) {
		_ = json.NewEncoder(os.Stdout).Encode(announced{s.Addr.String(), s.Metrics.String()})
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Serve(ctx, cfg)
}

// keep is the main program of a spawner that is a service of its own.
func keep(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	cfg := spawner.Config{Cgroup: spawner.CgroupNone, Folder: o.Folder}
	return spawner.Dial(ctx, o.Spawner, cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// heirs are servers of which one after the other is killed, and their spawner.
type heirs struct {
	*testServer
	orders
	server, keeper *exec.Cmd
}

// inherited gives a server that can be killed, whose next one takes its sessions over.
func inherited(t *testing.T, change func(*orders)) *heirs {
	t.Helper()
	t.Parallel()
	folder, err := os.MkdirTemp("", "heirs") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	k := &heirs{testServer: &testServer{t: t, log: &logBuffer{}}, orders: orders{Addr: "127.0.0.1:0",
		Spawner: filepath.Join(folder, "spawner"), Admin: filepath.Join(folder, "admin"), State: t.TempDir(),
		Grace: time.Hour}}
	if change != nil {
		change(&k.orders)
	}
	t.Cleanup(func() {
		if k.server != nil {
			k.end(k.server, unix.SIGTERM)
		}
		if k.keeper != nil {
			k.end(k.keeper, unix.SIGTERM)
		}
		if t.Failed() {
			t.Log(k.log.String())
		}
	})
	k.keeper, _ = k.begin("keeper")
	k.again()
	return k
}

// tenants is a file of tenants.
func tenants(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tenants")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// begin starts a part of the test binary as a process of its own, and gives what that says.
func (k *heirs) begin(part string) (*exec.Cmd, *bufio.Reader) {
	k.t.Helper()
	text, err := json.Marshal(k.orders)
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", part, string(text))
	cmd.Stderr = k.log
	says, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return cmd, bufio.NewReader(says)
}

// end ends a process, which may say no error when it was asked to.
func (k *heirs) end(cmd *exec.Cmd, how unix.Signal) {
	k.t.Helper()
	if err := cmd.Process.Signal(how); err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil && how != unix.SIGKILL {
		k.t.Errorf("%v ended with %v", cmd.Args[1], err)
	}
}

// kill ends the server as a kernel does that is out of memory.
func (k *heirs) kill() {
	k.t.Helper()
	k.end(k.server, unix.SIGKILL)
	k.server = nil
}

// again starts the next server.
func (k *heirs) again() {
	k.t.Helper()
	cmd, says := k.begin("supervisor")
	k.server = cmd
	var s announced
	line, err := says.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s)
	}
	if err != nil {
		k.t.Fatalf("does not serve: %v", err)
	}
	if k.addr != "" && k.addr != s.Addr {
		k.t.Fatalf("the next server listens at %s, not at %s", s.Addr, k.addr)
	}
	k.addr, k.metrics = s.Addr, "http://"+s.Metrics
}

// anew kills the server and starts the next one.
func (k *heirs) anew() {
	k.t.Helper()
	k.kill()
	k.again()
}

// desk asks the server as its administrator.
func (k *heirs) desk() (c *admin.Client) {
	k.t.Helper()
	k.until("the admin interface answers", func() (ok bool) {
		got, err := admin.Dial(k.t.Context(), k.Admin)
		c = got
		return err == nil
	})
	k.t.Cleanup(c.Close)
	return c
}

// shown are the sessions that the server has, once they are so many.
func (k *heirs) shown(n int) (all []admin.Session) {
	k.t.Helper()
	c := k.desk()
	defer c.Close()
	k.until(fmt.Sprintf("%d sessions", n), func() bool {
		var err error
		all, err = c.Sessions(k.t.Context())
		return err == nil && len(all) == n
	})
	return all
}

// ended says whether a process is gone, though perhaps nobody has asked how.
func ended(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err != nil
}

// told is the last thing that a client hears before its connection ends.
func (l *link) told() string {
	l.t.Helper()
	for {
		if _, _, err := l.message(); err != nil {
			return strings.Join(l.notices, "\n")
		}
	}
}

// record sends a command in a record, and reads the one with the answer.
func (l *link) record(op uint16, ctx uint64, payload []byte) {
	l.t.Helper()
	_ = l.conn.SetDeadline(time.Now().Add(patience))
	b := l.next(op, ctx, payload)
	if _, err := l.conn.Write(append(resume.AppendHeader(nil, resume.Header{Kind: resume.Bytes, Len: len(b),
		Received: l.heard}), b...)); err != nil {
		l.t.Fatal(err)
	}
	for {
		head := make([]byte, resume.HeaderSize)
		if !readFull(l.conn, head) {
			l.t.Fatal("no answer")
		}
		h, err := resume.ParseHeader(head)
		if err != nil || !readFull(l.conn, make([]byte, h.Len)) {
			l.t.Fatalf("the answer is %+v (%v)", h, err)
		}
		l.heard += uint64(h.Len)
		if h.Len > 0 {
			return
		}
	}
}

// lasting opens a session that outlives its connections, and has had them for a while.
func (k *heirs) lasting() *link {
	k.t.Helper()
	l := k.resumable()
	for _, line := range []uint32{transport.LineCallback, transport.LineBulk} {
		h := further(l.welcome, line, 1)
		h.Count = 1
		next, err := k.dial(h)
		if err == nil {
			_, err = transport.ReadResumes(next.conn)
		}
		if err != nil {
			k.t.Fatal(err)
		}
	}
	l.recordUse(8 << 20)
	return l
}

// recordUse is use in records.
func (l *link) recordUse(n uint64) {
	l.t.Helper()
	const ctx = 1 << 36
	l.record(wire.OpPrimary, 0, wire.Bytes(&wire.Primary{Context: ctx}))
	l.record(cuda.OpCuMemAlloc_v2, ctx,
		binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), n))
}

// back gives a session's main connection another socket.
func (k *heirs) back(l *link, epoch uint64) error {
	k.t.Helper()
	h := further(l.welcome, transport.LineMain, epoch)
	h.Acknowledged = l.heard
	next, err := k.dial(h)
	if err != nil {
		return err
	}
	_, err = transport.ReadResumes(next.conn)
	l.conn = next.conn
	return err
}
