package transport

import (
	"fmt"
	"time"

	"scuda.dev/scuda/transport/resume"
)

// A copy of what is lent pays where the peer's word takes longer than copying, by this much.
const (
	copyLeast = 200 * time.Microsecond
	copyRate  = 2 << 30 // bytes a second
)

// Loan is who lends what [Resumable.Keep] sends.
type Loan = resume.Loan

// Keep sends head and then data, which does not change until loan is told that it is the lender's again: when the peer
// has received it, or never will, at the latest by [Resumable.Abandon]; or when there is a copy ([Resumable.Copy]). It
// returns when the socket has all of it. It is no place for two at a time, nor beside Send.
func (r *Resumable) Keep(head, data, tail []byte, loan Loan) error {
	lent := false
	for {
		done, err := r.keep(head, data, tail, loan, &lent)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			_, err = r.Wait(Writable, -1)
		}
		if err != nil {
			if !lent {
				loan.Settled(false)
			}
			return err
		}
	}
}

func (r *Resumable) keep(head, data, tail []byte, loan Loan, lent *bool) (done bool, err error) {
	r.sending.Lock()
	defer r.sent()
	if r.state.Load() == resumeEnded {
		return false, fmt.Errorf("send to %s: %w", r.remote, r.reason())
	}
	if !*lent {
		n := len(head) + len(data) + len(tail)
		if err := r.makeRoom(n); err != nil {
			return false, err
		}
		if r.out.Room() < n {
			r.needs.Store(r.out.Full(n))
			return false, nil
		}
		r.needs.Store(0)
		r.out.Write([][]byte{head})
		r.out.Lend(data, loan)
		r.out.Write([][]byte{tail})
		r.lends.Store(true)
		*lent = true
	}
	done = r.pump(false)
	if done && r.timed.upTo == 0 {
		r.timed.upTo, r.timed.since = r.out.Written(), time.Now()
	}
	return done, nil
}

// timed is how long it takes until the peer has said that it received what the socket took: of one position at a time.
// The lock for sending guards it.
type timed struct {
	upTo  uint64 // the position; 0: of none
	since time.Time
	takes time.Duration // a mean of the last ones
}

// note looks whether the peer has said it.
func (t *timed) note(peer uint64) {
	if t.upTo == 0 || peer < t.upTo {
		return
	}
	if took := time.Since(t.since); t.takes == 0 {
		t.takes = took
	} else {
		t.takes += (took - t.takes) / 4
	}
	t.upTo = 0
}

// Copy gives what was lent and sent back to the lenders, who wait for it, where a copy is there sooner than the peer's
// word. The copies are a part of the window.
func (r *Resumable) Copy() {
	r.sending.Lock()
	defer r.sent()
	n := r.out.Lent()
	if n > 0 && r.timed.takes > copyLeast+time.Duration(n)*time.Second/copyRate {
		r.out.Copy()
	}
}

// Abandon gives back what was lent. The stream has ended.
func (r *Resumable) Abandon() {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.out.Abandon()
	r.lends.Store(false)
}

// giveBack gives back what was lent and the peer has received. Where somebody is sending, that one does it.
func (r *Resumable) giveBack() {
	for r.lends.Load() && r.peer.Load() > r.taken.Load() && r.sending.TryLock() {
		err := r.makeRoom(0)
		r.sending.Unlock()
		if err != nil {
			return
		}
	}
}
