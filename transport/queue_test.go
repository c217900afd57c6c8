package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestQueuedString(t *testing.T) {
	for want, q := range map[string]Queued{
		"first in the queue": {Place: 1}, "third in the queue, about 40 s": {Place: 3, Wait: 41 * time.Second},
		"tenth in the queue, about 1 s":        {Place: 10, Wait: time.Millisecond},
		"11th in the queue, about 1 min":       {Place: 11, Wait: 58 * time.Second},
		"12th in the queue, about 12 min":      {Place: 12, Wait: 12*time.Minute + 5*time.Second},
		"22nd in the queue, about 1 h":         {Place: 22, Wait: time.Hour - time.Second},
		"101st in the queue, about 47 h":       {Place: 101, Wait: 47 * time.Hour},
		"113th in the queue, about 30 days":    {Place: 113, Wait: LongestWait},
		"1003rd in the queue, about 9 s":       {Place: 1003, Wait: 9 * time.Second},
		"104th in the queue, about 55 s":       {Place: 104, Wait: 57 * time.Second},
		"21st in the queue, about 10 s":        {Place: 21, Wait: 9600 * time.Millisecond},
		"second in the queue, about 2 days":    {Place: 2, Wait: 48 * time.Hour},
		"seventh in the queue, about 59 min":   {Place: 7, Wait: 59 * time.Minute},
		"-1th in the queue, about 10 s":        {Place: -1, Wait: 12 * time.Second},
		"1000000th in the queue, about 20 min": {Place: 1000000, Wait: 20 * time.Minute},
	} {
		if got := q.String(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// A person who waits reads where they stand at once, then what has changed, and every ten seconds at most.
func TestTeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		tell := Teller("gpu7:1", func(line string) { got = append(got, line) })
		for _, q := range []Queued{
			{Place: 3, Of: 3, Reason: "2 of 2 are taken"}, {Place: 2, Of: 2}, {Place: 2, Of: 2}, {Place: 2, Of: 3},
			{Place: 1, Of: 2}, {Place: 1, Of: 1},
		} {
			tell(q)
			time.Sleep(5 * time.Second)
		}
		want := []string{"waiting for a place on gpu7:1: third in the queue (2 of 2 are taken)",
			"waiting for a place on gpu7:1: second in the queue", "waiting for a place on gpu7:1: first in the queue"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, not %q", got, want)
		}
	})
}

// waiting is the bytes of an answer that is not the last.
func waiting(t testing.TB, q *Queued) []byte {
	t.Helper()
	b, err := AppendWelcome(nil, &Welcome{Status: StatusWaiting, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDialWaits(t *testing.T) {
	last, err := AppendWelcome(nil, &Welcome{Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	full, err := AppendWelcome(nil, &Welcome{Status: StatusBusy, Error: "nobody left"})
	if err != nil {
		t.Fatal(err)
	}
	long := waiting(t, &Queued{Place: 1, Of: 1, Reason: strings.Repeat("x", MaxWaiting)})
	for _, c := range []struct {
		name string
		says [][]byte
		wait time.Duration
		heed int // places that are heard of
		want error
	}{
		{"a place", [][]byte{waiting(t, &Queued{Place: 2, Of: 2}), waiting(t, &Queued{Place: 1, Of: 2}), last}, time.Hour,
			2, nil},
		{"none in the end", [][]byte{waiting(t, &Queued{Place: 2, Of: 2}), full}, time.Hour, 1, ErrBusy},
		{"not offered", [][]byte{waiting(t, &Queued{Place: 2, Of: 2}), last}, 0, 0, ErrNotScuda},
		{"negative", [][]byte{waiting(t, &Queued{Place: 2, Of: 2}), last}, -1, 0, ErrNotScuda},
		{"no place said", [][]byte{waiting(t, nil), last}, time.Hour, 0, ErrNotScuda},
		{"a place that is none", [][]byte{waiting(t, &Queued{Place: 0, Of: 2}), last}, time.Hour, 0, ErrNotScuda},
		{"a place behind all", [][]byte{waiting(t, &Queued{Place: 3, Of: 2}), last}, time.Hour, 0, ErrNotScuda},
		{"a time that is none", [][]byte{waiting(t, &Queued{Place: 1, Of: 2, Wait: -1}), last}, time.Hour, 0,
			ErrNotScuda},
		{"too long", [][]byte{waiting(t, &Queued{Place: 1, Of: 2}), long, last}, time.Hour, 1, ErrNotScuda},
		{"the server ends", [][]byte{waiting(t, &Queued{Place: 1, Of: 2})}, time.Hour, 1, ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := serve(t, func(conn *net.TCPConn) {
				if _, err := ReadPreface(conn, nil); err != nil {
					t.Error(err)
				}
				_, _ = conn.Write(bytes.Join(c.says, nil))
				_ = conn.CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
			})
			heard := 0
			hello := &Hello{Kind: KindCUDA, Wait: c.wait, Waiting: func(Queued) { heard++ }}
			conn, w, err := Dial(t.Context(), Target{Address: address}, hello)
			if !errors.Is(err, c.want) || heard != c.heed || err == nil && w.Session != "s" {
				t.Errorf("%v, heard %d, not %v and %d", err, heard, c.want, c.heed)
			}
			if conn != nil {
				conn.Close()
			}
		})
	}
}

// Whoever gives up while it waits need not wait for the server's next word.
func TestDialWaitsUntilItIsCancelled(t *testing.T) {
	address := serve(t, func(conn *net.TCPConn) {
		_, _ = ReadPreface(conn, nil)
		_, _ = conn.Write(waiting(t, &Queued{Place: 1, Of: 1}))
		_, _ = io.Copy(io.Discard, conn)
	})
	ctx, cancel := context.WithCancel(t.Context())
	hello := &Hello{Wait: time.Hour, Waiting: func(Queued) { cancel() }}
	if _, _, err := Dial(ctx, Target{Address: address}, hello); err == nil {
		t.Error("a handshake that was given up succeeded")
	}
}

func TestHelloOfWaiting(t *testing.T) {
	b, err := AppendPreface(nil, nil, &Hello{Kind: KindCUDA, Wait: 90 * time.Second, Waiting: func(Queued) {}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := ReadPreface(bytes.NewReader(b), nil)
	if err != nil || h.Wait != 90*time.Second || h.Waiting != nil {
		t.Errorf("%+v, %v", h, err)
	}
	if len(h.Needs()) != 0 {
		t.Error("a server that has no queue is refused")
	}
}

// What is read of a queue is within bounds, and fit to be shown.
func FuzzQueued(f *testing.F) {
	f.Add(waiting(f, &Queued{Place: 3, Of: 7, Wait: time.Minute, Reason: "x\n"}))
	f.Add(waiting(f, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := ReadWelcome(bytes.NewReader(b))
		if err != nil || w.Status != StatusWaiting {
			return
		}
		q := w.Queue
		if q == nil || q.Place < 1 || q.Of < q.Place || q.Wait < 0 || q.Wait > LongestWait || len(b) < len(Magic)+12 {
			t.Fatalf("%+v", q)
		}
		if s := q.String() + q.Reason; strings.ContainsAny(s, "\n\x1b") || len(q.String()) > 60 {
			t.Errorf("%q", s)
		}
	})
}
