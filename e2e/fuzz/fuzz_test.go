package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// lines collects what a run writes, which it does from several goroutines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A few cases of every kind, the same ones each time. `make fuzz` goes on for longer.
func TestFewOfEveryKind(t *testing.T) {
	out := new(lines)
	o := options{counts: map[string]int64{"cuda": 120, "nvml": 40, "door": 40, "answers": 20, "tls": 8},
		seed: 1, number: -1, jobs: 6, quick: true, patience: 15 * time.Second, every: time.Hour, gpu: "sim", root: "../..",
		keep: t.TempDir(), out: out}
	if code := run(context.Background(), o); code != 0 {
		t.Fatalf("exit status %d\n%s", code, out)
	}
	for _, kind := range []string{"cuda 120 (", "nvml 40 (", "door 40 (", "answers 20 (", "tls 8 ("} {
		if !strings.Contains(out.String(), kind) {
			t.Errorf("no %s in\n%s", kind, out)
		}
	}
	t.Log(out)
}

// Every fuzz function of the repository is found.
func TestNativeIsWhole(t *testing.T) {
	list, err := listFuzz(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[fuzzFunction]bool{}
	for _, x := range list {
		seen[x] = true
	}
	for _, x := range []fuzzFunction{{"./transport", "FuzzPreface"}, {"./api/codec", "FuzzCodec"}} {
		if !seen[x] {
			t.Errorf("%v is not found", x)
		}
	}
	if len(list) < 27 || len(seen) != len(list) {
		t.Errorf("%d functions, %d of them different", len(list), len(seen))
	}
}

// What a server says is taken apart however it comes, and goes on whole.
func TestMessageStream(t *testing.T) {
	welcome, err := transport.AppendWelcome(nil, &transport.Welcome{Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	all := welcome
	for i := range 5 {
		all = transport.MessageHeader{Type: transport.MsgReply, ID: uint32(i), Len: uint32(3 * i)}.Append(all)
		all = append(all, make([]byte, transport.Pad(3*i))...)
	}
	for _, size := range []int{1, 7, 33, len(all)} {
		n := 0
		s := &messageStream{message: func(m *message) []byte {
			if m.ID != uint32(n) {
				t.Errorf("message %d has the number %d", n, m.ID)
			}
			n++
			return m.bytes()
		}}
		var out []byte
		for b := all; len(b) > 0; {
			k := min(size, len(b))
			out = append(out, s.feed(b[:k])...)
			b = b[k:]
		}
		if n != 5 || !bytes.Equal(out, all) {
			t.Errorf("in parts of %d: %d messages, %d of %d bytes", size, n, len(out), len(all))
		}
	}
}

// One cause can make a finding of every case; a run ends before they fill the disk.
func TestEnoughFindings(t *testing.T) {
	f := &fuzzer{options: options{number: -1, jobs: 2, every: time.Hour, keep: t.TempDir(), out: new(lines)}}
	f.kinds = []*kind{{name: "door", share: 1, try: func(_ context.Context, c *trial) { c.fault("always") }}}
	if err := f.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.findings(); n < enough || n > enough+f.jobs {
		t.Errorf("%d findings", n)
	}
}

// Without Go its own fuzzing is refused at the start.
func TestNativeNeedsGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := newFuzzer(t.Context(), options{only: []string{"native"}, root: "../.."})
	if err == nil || !strings.Contains(err.Error(), "-only") {
		t.Error(err)
	}
}
