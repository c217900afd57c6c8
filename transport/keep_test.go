package transport

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// lender lends memory, and uses it again as soon as that is said to be its own.
type lender struct {
	b       []byte
	copies  *atomic.Int32
	settled chan bool
}

func (l *lender) Copied() {
	l.copies.Add(1)
	clear(l.b)
	l.b = nil
}

func (l *lender) Settled(received bool) {
	clear(l.b)
	l.settled <- received
}

// Whatever breaks, the peer reads what was lent, also where the lender has used the memory for something else since:
// the copies go to the next sockets.
func TestKeepCopies(t *testing.T) {
	const pieces, most = 200, 16 << 10
	random := rand.New(rand.NewPCG(7, 8))
	var mu sync.Mutex
	n := newNetwork(t, Windows{Own: 64 << 10, Peer: 64 << 10}, false, func() int {
		mu.Lock()
		defer mu.Unlock()
		return 8000 + random.IntN(100_000)
	})
	all := noise(pieces*most, 9)
	var ends []int
	for at := 0; len(ends) < pieces; {
		at += 8 * (1 + random.IntN(most/8))
		ends = append(ends, at)
	}
	said := all[:ends[pieces-1]]
	var copies atomic.Int32
	settled := make(chan bool, pieces)
	near, far := Resumed(n.near), Resumed(n.far)
	var users sync.WaitGroup
	users.Go(func() {
		at := 0
		for i, end := range ends {
			l := &lender{b: bytes.Clone(said[at:end]), copies: &copies, settled: settled}
			if err := n.near.Keep(l.b[:8:8], l.b[8:], nil, l); err != nil {
				t.Error(err)
				return
			}
			if at = end; i%3 != 0 {
				n.near.sending.Lock()
				n.near.timed.takes = time.Hour // the peer's word takes longer than any copy
				n.near.sending.Unlock()
				n.near.Copy()
			}
		}
	})
	users.Go(func() {
		got := make([]byte, len(said))
		for rest := got; len(rest) > 0; {
			k := min(len(rest), 4096)
			if err := far.ReadFull(rest[:k]); err != nil {
				t.Error(err)
				return
			}
			rest = rest[k:]
			far.Acknowledge()
		}
		if !bytes.Equal(got, said) {
			t.Error("the bytes arrived changed")
		}
	})
	users.Go(func() { // so that sockets break in both directions
		if err := far.write([][]byte{said}); err != nil {
			t.Error(err)
		}
	})
	heard := make(chan struct{})
	users.Go(func() { // takes in what the peer says of its receiving as well
		if err := near.ReadFull(make([]byte, len(said))); err != nil {
			t.Error(err)
		}
		close(heard)
		_ = near.ReadFull(make([]byte, 1))
	})
	for range pieces {
		if received := <-settled; !received {
			t.Fatal("lent bytes were given back as lost")
		}
	}
	if k := int(copies.Load()); k < pieces/10 {
		t.Errorf("only %d of %d pieces were copied", k, pieces)
	}
	if n.cuts.Load() < 5 {
		t.Errorf("only %d sockets broke", n.cuts.Load())
	}
	<-heard
	n.near.Shutdown()
	users.Wait()
}

// The mean follows what the peer takes, of one position at a time.
func TestTimeOfTheWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c timed
		c.note(100)
		if c.takes != 0 {
			t.Errorf("nothing was sent, and it took %v", c.takes)
		}
		for i, took := range []time.Duration{8 * time.Millisecond, 6 * time.Millisecond, 4 * time.Millisecond} {
			c.upTo, c.since = uint64(100*(i+1)), time.Now()
			time.Sleep(took)
			c.note(c.upTo - 1)
			if c.upTo == 0 {
				t.Error("a part was taken for the whole")
			}
			c.note(c.upTo)
		}
		if want := 6625 * time.Microsecond; c.takes != want || c.upTo != 0 {
			t.Errorf("the mean is %v, expected %v", c.takes, want)
		}
	})
}
