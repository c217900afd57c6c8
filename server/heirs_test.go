package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/memfd"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/mps"
	"scuda.dev/scuda/server/mps/mpstest"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/transport"
)

// A client that was away while its server was killed comes back to the next one. One that does not is ended by that.
func TestAwayWhileServerIsKilled(t *testing.T) {
	k := inherited(t, nil)
	l := k.lasting()
	l.reset()
	k.shows("scuda_sessions_away 1")
	k.anew()
	if all := k.shown(1); all[0].Away == nil || all[0].ID != l.welcome.Session {
		t.Errorf("%+v", all)
	}
	if err := k.back(l, 1); err != nil {
		t.Fatal(err)
	}
	l.record(cuda.OpCuMemAlloc_v2, 1<<36, binary.LittleEndian.AppendUint64(
		binary.LittleEndian.AppendUint64(nil, 1), 1<<20))
	k.shows("scuda_sessions_away 0")
	k.Grace = 3 * time.Second
	k.anew() // which knows another grace for those who come
	late := k.lasting()
	worker := k.workerOf(late)
	late.reset()
	k.shows("scuda_sessions_away 1")
	k.anew()
	k.shows(`scuda_sessions_ended_total{how="away",kind="cuda"} 1`)
	e := (*transport.SessionEnded)(nil)
	if err := k.back(late, 1); !errors.As(err, &e) || !strings.Contains(e.Reason, "not come back within 3s") {
		t.Errorf("who comes too late is told %v", err)
	}
	k.until("its worker is gone, and its memory with that", func() bool { return ended(worker) })
	k.shown(1)
}

// A server that is killed while it takes sessions over leaves them to the next one.
func TestKilledWhileTakingOver(t *testing.T) {
	k := inherited(t, nil)
	links := []*link{k.open(transport.KindCUDA), k.open(transport.KindCUDA)}
	for _, moment := range []string{"a spawner has connected", "another server process has taken over",
		`msg="session taken over"`} {
		k.kill()
		before := strings.Count(k.log.String(), moment)
		cmd, _ := k.begin("supervisor")
		k.until(moment, func() bool { return strings.Count(k.log.String(), moment) > before })
		k.end(cmd, unix.SIGKILL)
		k.again()
		k.shown(2)
		for _, l := range links {
			if !l.alive() {
				t.Fatalf("a session has ended that was taken over twice, the first time up to: %s", moment)
			}
		}
	}
}

// Without server and spawner nothing is left running, and clients are told why.
func TestKilledWithItsSpawner(t *testing.T) {
	k := inherited(t, nil)
	l := k.open(transport.KindCUDA)
	worker := k.workerOf(l)
	k.kill()
	k.end(k.keeper, unix.SIGKILL)
	k.keeper = nil
	if said := l.told(); !strings.Contains(said, "server process is gone") {
		t.Errorf("the client is told %q", said)
	}
	k.until("the worker is gone", func() bool { return ended(worker) })
	k.addr = "" // nobody has kept the socket
	k.keeper, _ = k.begin("keeper")
	k.again()
	k.shown(0)
	k.open(transport.KindCUDA)
}

// What an administrator does to sessions works for those that were taken over: they are listed, ended, counted within
// their quota, and end with their leases.
func TestSessionsAreRuledAfterwards(t *testing.T) {
	k := inherited(t, func(o *orders) {
		o.Tenants = tenants(t, "alice token=alice-token max-vram-per-tenant=8MiB\nbob token=bob-token\n")
	})
	desk := k.desk()
	lease := func(seconds float64) (*link, string) {
		g := granted(t, desk, admin.LeaseRequest{Tenant: "bob", Seconds: seconds})
		k.token = []byte(g.Credential)
		return k.open(transport.KindCUDA), g.ID
	}
	revoked, id := lease(3600)
	expires, _ := lease(4)
	alice := k.as("alice")
	alloc := func(l *link, mib uint64) int32 {
		r, _, err := l.call(cuda.OpCuMemAlloc_v2, 1<<36,
			binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), mib<<20))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := alloc(alice, 4); r != 0 {
		t.Fatal(r)
	}
	before := k.shown(3)
	k.anew()
	if said := expires.told(); !strings.Contains(said, "expired") {
		t.Errorf("whose lease has expired is told %q", said)
	}
	after := k.shown(2)
	for _, x := range after {
		for _, b := range before {
			if x.ID == b.ID && (x.Worker != b.Worker || x.Tenant != b.Tenant || x.Lease != b.Lease ||
				!x.Opened.Equal(b.Opened) || x.Quota != b.Quota) {
				t.Errorf("before\n%+v\nafter\n%+v", b, x)
			}
		}
	}
	second := k.as("alice") // has 1 MiB of the 3 that are left
	if r := alloc(second, 3); r != int32(cuda.CUDA_ERROR_OUT_OF_MEMORY) {
		t.Errorf("beyond the tenant's quota: %d", r)
	}
	if r := alloc(second, 2); r != 0 {
		t.Errorf("within it: %d", r)
	}
	desk = k.desk()
	if err := desk.Revoke(t.Context(), id, "the job is over"); err != nil {
		t.Fatal(err)
	}
	if said := revoked.told(); !strings.Contains(said, "revoked") || !strings.Contains(said, "the job is over") {
		t.Errorf("whose lease was revoked is told %q", said)
	}
	if err := desk.End(t.Context(), alice.welcome.Session, "enough"); err != nil {
		t.Fatal(err)
	}
	if said := alice.told(); !strings.Contains(said, "enough") {
		t.Errorf("whom an administrator ends is told %q", said)
	}
	k.until("what the first one had is free", func() bool { return alloc(second, 5) == 0 })
	if _, err := desk.Drain(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if !second.alive() {
		t.Error("the session of a server that is drained has ended")
	}
}

// What sessions use is counted once, whichever server counts it. Counters of a server begin at 0, so that those who add
// up what comes do not add what another one has counted.
func TestCountedOnce(t *testing.T) {
	k := inherited(t, nil)
	began := time.Now().Add(-time.Minute)
	l := k.open(transport.KindCUDA)
	l.use(1 << 20)
	pings := func() {
		for range 5 {
			if !l.alive() {
				t.Fatal("lost")
			}
		}
	}
	pings()
	var spent float64
	k.until("it has used the GPU", func() bool { spent = k.shown(1)[0].GPUSeconds; return spent > 0 })
	calls := *k.shown(1)[0].Calls
	k.anew()
	if x := k.shown(1)[0]; *x.Calls != calls || x.GPUSeconds < spent {
		t.Errorf("%d calls and %v s of a GPU, before they were %d and %v", *x.Calls, x.GPUSeconds, calls, spent)
	}
	counted := func() (sum int) {
		_, text := k.get("/metrics")
		for line := range strings.Lines(text) {
			var n int
			if rest, ok := strings.CutPrefix(line, "scuda_calls_total{"); ok {
				if _, err := fmt.Sscan(rest[strings.IndexByte(rest, ' ')+1:], &n); err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
		return sum
	}
	if n := counted(); n != 0 {
		t.Errorf("the next server has counted %d calls, and there was none", n)
	}
	pings()
	if n := counted(); n != 5 {
		t.Errorf("it has counted %d calls of 5", n)
	}
	l.leave()
	k.shown(0)
	if n := counted(); n != 6 {
		t.Errorf("it has counted %d calls of 6", n)
	}
	k.anew()
	u, err := k.desk().Usage(t.Context(), began, "tenant")
	if err != nil || len(u.Sums) != 1 || u.Sums[0].Calls != calls+6 || u.Sums[0].GPU < spent {
		t.Errorf("%+v, %v; %d calls before, %v s", u, err, calls, spent)
	}
}

// A server of another release ends the sessions of the one before, tells their clients, and counts what they used.
func TestAnotherRelease(t *testing.T) {
	k := inherited(t, nil)
	l := k.lasting()
	worker, calls := k.workerOf(l), *k.shown(1)[0].Calls
	k.until("it has been metered", func() bool { return k.shown(1)[0].GPUSeconds > 0 })
	k.Other = true
	k.anew()
	e := (*transport.SessionEnded)(nil)
	if err := k.back(l, 1); !errors.As(err, &e) || !strings.Contains(e.Reason, "the server was upgraded") {
		t.Errorf("the client is told %v", err)
	}
	k.until("its worker is gone", func() bool { return ended(worker) })
	k.shown(0)
	u, err := k.desk().Usage(t.Context(), time.Now().Add(-time.Hour), "tenant")
	if err != nil || len(u.Sums) != 1 || u.Sums[0].Calls != calls {
		t.Errorf("%+v, %v; it had %d calls", u, err, calls)
	}
	k.open(transport.KindCUDA)
}

// Sessions of which something else is kept than a supervisor keeps end, and the others go on.
func TestDamagedHeritage(t *testing.T) {
	k := inherited(t, nil)
	good := k.open(transport.KindCUDA)
	k.kill()
	ctx, over := context.WithCancel(t.Context())
	defer over()
	r, err := spawner.Listen(ctx, k.Spawner, patience, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	kept, house := r.TakeOver()
	for i := range kept {
		house = append(house, kept[i].Files...)
	}
	for _, f := range house {
		f.Close()
	}
	info := sessionRecord{Contract: contract, ID: "a", Secret: "s", Tenant: "default"}
	unwelcome, err := newRecord(&info, changing{})
	if err != nil {
		t.Fatal(err)
	}
	defer unwelcome.close()
	pipe, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer theirs.Close()
	var workers []int
	for _, fd := range []int{int(pipe.Fd()), memoryWith(t, 10, nil), memoryWith(t, 1<<40, nil),
		memoryWith(t, recordPage+100, []byte("{")), unwelcome.fd} {
		line, end, err := handoff.Pair()
		if err != nil {
			t.Fatal(err)
		}
		w, err := r.Start(spawner.Order{}, end, theirs)
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w.PID)
		own, err := line.File()
		if err != nil {
			t.Fatal(err)
		}
		record, err := copies([]*os.File{pipe})
		if err == nil {
			err = unix.Dup3(fd, record[0], unix.O_CLOEXEC)
		}
		if err != nil {
			t.Fatal(err)
		}
		last := os.NewFile(uintptr(record[0]), "record")
		if err := w.Keep([]*os.File{own, pipe, pipe, pipe, last}); err != nil {
			t.Fatal(err)
		}
		own.Close()
		last.Close()
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	over()
	k.until("its socket is gone, which the next server makes anew", func() bool {
		_, err := os.Stat(k.Spawner)
		return errors.Is(err, os.ErrNotExist)
	})
	k.again()
	k.shown(1)
	if !good.alive() {
		t.Error("a session has ended of which all was there")
	}
	for i, pid := range workers {
		k.until(fmt.Sprintf("worker %d is gone", i), func() bool { return ended(pid) })
	}
	k.logged("its client has not heard of it")
}

// memoryWith is memory with a text in it, or nothing.
func memoryWith(t *testing.T, size int64, text []byte) int {
	t.Helper()
	fd, err := memfd.New("test", size)
	if err == nil && text != nil {
		_, err = unix.Pwrite(fd, text, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFD(fd) })
	return fd
}

// Sessions under MPS end with their server, as its daemons do; their clients are told, and nothing is left.
func TestMPSWithoutItsServer(t *testing.T) {
	var folder string
	k := inherited(t, func(o *orders) {
		folder = filepath.Join(filepath.Dir(o.Spawner), "w")
		o.Folder, o.MPS = folder, mpstest.Install(t)
	})
	if !strings.Contains(k.log.String(), "sessions under MPS end with this server") {
		t.Error("the server does not say what its restart means")
	}
	l := k.open(transport.KindCUDA)
	worker := k.workerOf(l)
	daemons := pipes(t, folder)
	if len(daemons) != 1 {
		t.Fatalf("the daemons are in %q", daemons)
	}
	k.kill()
	if said := l.told(); !strings.Contains(said, "the server process is gone") {
		t.Errorf("the client is told %q", said)
	}
	k.until("its worker is gone", func() bool { return ended(worker) })
	control := mps.Control{Program: k.MPS, Folder: daemons[0]}
	k.until("the daemon is gone", func() bool {
		_, err := mps.Servers(t.Context(), &control)
		return err != nil
	})
	k.again()
	k.open(transport.KindCUDA)
	k.shown(1)
}

// A server that is told to end before it serves ends the sessions that it was to take over: no other comes after it.
func TestToldToEndWhileStarting(t *testing.T) {
	k := inherited(t, nil)
	worker := k.workerOf(k.open(transport.KindCUDA))
	const connected, waits = "a spawner has connected", "sessions wait for the next one"
	k.kill()
	before := strings.Count(k.log.String(), connected)
	cmd, _ := k.begin("supervisor")
	k.until("it has a spawner", func() bool { return strings.Count(k.log.String(), connected) > before })
	k.end(cmd, unix.SIGTERM)
	waited := func() int { return strings.Count(k.log.String(), waits) }
	k.until("the worker is gone", func() bool { return ended(worker) || waited() > 1 })
	if waited() != 1 {
		t.Error("the session waits for another server")
	}
}

// A worker that is slow to answer keeps nobody from the next server, and its session goes on.
func TestSlowHeir(t *testing.T) {
	k := inherited(t, nil)
	slow, other := k.open(transport.KindCUDA), k.open(transport.KindCUDA)
	worker := k.workerOf(slow)
	if err := unix.Kill(worker, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	k.anew()
	k.logged("is slow to answer its new server")
	k.shown(2)
	if !k.open(transport.KindCUDA).alive() || !other.alive() {
		t.Error("other sessions are held up")
	}
	if err := unix.Kill(worker, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !slow.alive() {
		t.Error("the session has ended")
	}
	k.until("it has all that belongs to a session", func() bool {
		return strings.Count(k.log.String(), `msg="session taken over"`) == 2
	})
}
