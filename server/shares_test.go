package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
)

// workerOn is a worker's sharer and the supervisor's process at the other end of its line.
func workerOn(t *testing.T, shelf *shelf, tenant string) (*sharer, *process) {
	t.Helper()
	ours, theirs, err := handoff.Pair()
	if err != nil {
		t.Fatal(err)
	}
	line, err := handoff.FromFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	s, p := &sharer{line: line}, &process{line: ours}
	if tenant != "" {
		p.grant.Store(&grant{tenant: tenant})
	}
	var both sync.WaitGroup
	both.Go(func() {
		p.listen(shelf)
		shelf.forget(p)
	})
	both.Go(func() {
		for {
			m, err := line.Receive()
			if err != nil {
				return
			}
			if err := s.answered(m); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		line.Close()
		ours.Close()
		both.Wait()
	})
	return s, p
}

func memory(t *testing.T, text string) int {
	t.Helper()
	fd, err := unix.MemfdCreate("shares-test", unix.MFD_CLOEXEC)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestShares(t *testing.T) {
	shelf := newShelf()
	a, first := workerOn(t, shelf, "a")
	b, _ := workerOn(t, shelf, "a")
	fd := memory(t, "shared")
	token, err := a.Publish(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil { // the supervisor has its own
		t.Fatal(err)
	}
	for range 2 {
		got, err := b.Fetch(token)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(got), "fetched")
		text := make([]byte, 6)
		if _, err := f.ReadAt(text, 0); err != nil || !bytes.Equal(text, []byte("shared")) {
			t.Errorf("fetched %q, %v", text, err)
		}
		f.Close()
	}
	if _, err := b.Fetch(executor.Token{1}); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("unknown token: %v", err)
	}
	b.Withdraw(token) // is not its own
	if got, err := b.Fetch(token); err != nil {
		t.Errorf("after another session's withdrawal: %v", err)
	} else {
		unix.Close(got)
	}
	a.Withdraw(token)
	if _, err := a.Fetch(token); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("after its withdrawal: %v", err)
	}

	fd = memory(t, "again")
	defer unix.Close(fd)
	if token, err = a.Publish(fd); err != nil {
		t.Fatal(err)
	}
	shelf.forget(first)
	if _, err := b.Fetch(token); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("after the end of the session that shared it: %v", err)
	}
}

func TestSharesAreBounded(t *testing.T) {
	shelf := newShelf()
	shelf.most, shelf.each, shelf.tenantMax = 5, 3, 4
	a, _ := workerOn(t, shelf, "a")
	b, second := workerOn(t, shelf, "b")
	fd := memory(t, "x")
	defer unix.Close(fd)
	var last executor.Token
	for i, c := range []struct {
		by   *sharer
		says string
	}{
		{a, ""}, {a, ""}, {a, ""}, {a, "a session may share 3"}, {b, ""}, {b, ""}, {b, "all sessions together may share 5"},
	} {
		token, err := c.by.Publish(fd)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Fatalf("share %d: %v", i, err)
		}
		if err == nil {
			last = token
		}
	}
	b.Withdraw(last)
	if _, err := b.Publish(fd); err != nil {
		t.Errorf("after one was withdrawn: %v", err)
	}
	shelf.forget(second)
	shelf.mu.Lock() // the workers' ends come back to the shelf
	open := shelf.open
	shelf.mu.Unlock()
	if open != 3 {
		t.Errorf("%d are open", open)
	}
	for descriptors, want := range map[uint64][2]int{
		0: {1, 1}, 64: {16, 4}, 1024: {256, 64}, 1 << 20: {1 << 18, maxShares}, 1<<64 - 1: {1 << 20, maxShares},
	} {
		if all, one := sharesOf(descriptors); all != want[0] || one != want[1] {
			t.Errorf("of %d descriptors: %d and %d", descriptors, all, one)
		}
	}
}

func TestSharedValues(t *testing.T) {
	shelf := newShelf()
	a, first := workerOn(t, shelf, "a")
	b, _ := workerOn(t, shelf, "a")
	v := executor.Value{Kind: cuda.KindIpcMemHandle, Bytes: [64]byte{1, 2, 63: 3}}
	token, err := a.PublishValue(v)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.FetchValue(token); err != nil || got != v {
		t.Errorf("fetched %v, %v", got, err)
	}
	if fd, err := b.Fetch(token); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("a value as a descriptor: %d, %v", fd, err)
	}
	fd := memory(t, "x")
	defer unix.Close(fd)
	descriptor, err := a.Publish(fd)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.FetchValue(descriptor); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("a descriptor as a value: %v, %v", got, err)
	}
	b.Withdraw(token) // is not its own
	if _, err := b.FetchValue(token); err != nil {
		t.Errorf("after another session's withdrawal: %v", err)
	}
	shelf.forget(first)
	if _, err := b.FetchValue(token); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("after the end of the session that shared it: %v", err)
	}
	if len(shelf.items)+len(shelf.counts) != 0 {
		t.Errorf("%d items and %d counts are left", len(shelf.items), len(shelf.counts))
	}
}

func TestSharedValuesAreBounded(t *testing.T) {
	shelf, p := newShelf(), &process{}
	put := func(i int) error {
		var token executor.Token
		binary.LittleEndian.PutUint64(token[:], uint64(i))
		return shelf.put(shareKey{"a", token}, shared{-1, &executor.Value{}, p})
	}
	for i := range executor.MaxValues {
		if err := put(i); err != nil {
			t.Fatalf("value %d: %v", i, err)
		}
	}
	if err := put(executor.MaxValues); err == nil {
		t.Error("one value more than allowed")
	}
	if err := shelf.put(shareKey{"a", executor.Token{15: 1}}, shared{-1, nil, p}); err == nil {
		t.Error("nothing was shared")
	}
}

// To another tenant a token is one that nobody has given out, and a worker without a session has none.
func TestSharesStayWithTheirTenant(t *testing.T) {
	shelf := newShelf()
	alice, _ := workerOn(t, shelf, "alice")
	bob, _ := workerOn(t, shelf, "bob")
	warm, _ := workerOn(t, shelf, "")
	fd := memory(t, "x")
	defer unix.Close(fd)
	token, err := alice.Publish(fd)
	if err != nil {
		t.Fatal(err)
	}
	value, err := alice.PublishValue(executor.Value{Bytes: [64]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := bob.Fetch(token); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("memory of another tenant: %d, %v", got, err)
	}
	if got, err := bob.FetchValue(value); !errors.Is(err, executor.ErrNoShare) {
		t.Errorf("a value of another tenant: %v, %v", got, err)
	}
	bob.Withdraw(token)
	if _, err := warm.Fetch(token); err == nil {
		t.Error("memory for a worker without a session")
	}
	if _, err := warm.Publish(fd); err == nil {
		t.Error("a worker without a session shares")
	}
	got, err := alice.Fetch(token)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(got)
}

// A tenant leaves descriptors of the supervisor for others.
func TestSharesOfATenantAreBounded(t *testing.T) {
	shelf := newShelf()
	shelf.tenantMax = 3
	fd := memory(t, "x")
	defer unix.Close(fd)
	a, _ := workerOn(t, shelf, "a")
	again, first := workerOn(t, shelf, "a")
	b, _ := workerOn(t, shelf, "b")
	for i, s := range []*sharer{a, again, again} {
		if _, err := s.Publish(fd); err != nil {
			t.Fatalf("share %d: %v", i, err)
		}
	}
	if _, err := a.Publish(fd); err == nil {
		t.Error("one more than a tenant may have")
	}
	if _, err := b.Publish(fd); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	shelf.forget(first)
	if _, err := a.Publish(fd); err != nil {
		t.Errorf("after one of its sessions has ended: %v", err)
	}
}

// Closing a connection may take as long as its other end likes, so the supervisor keeps none.
func TestSharesAreMemory(t *testing.T) {
	shelf := newShelf()
	a, _ := workerOn(t, shelf, "a")
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sockets[0])
	defer unix.Close(sockets[1])
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for name, fd := range map[string]int{"a socket": sockets[0], "a pipe": pipe[0]} {
		if _, err := a.Publish(fd); err == nil {
			t.Errorf("%s is shared", name)
		}
	}
}
