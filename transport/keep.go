package transport

import "fmt"

// Keep sends head and then data, which does not change until back is called: when the peer has received it, or (with
// false) where it never will, at the latest by [Resumable.Abandon]. It returns when the socket has all of it. It is no
// place for two at a time, nor beside Send.
func (r *Resumable) Keep(head, data, tail []byte, back func(received bool)) error {
	lent := false
	for {
		done, err := r.keep(head, data, tail, back, &lent)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			_, err = r.Wait(Writable, -1)
		}
		if err != nil {
			if !lent {
				back(false)
			}
			return err
		}
	}
}

func (r *Resumable) keep(head, data, tail []byte, back func(received bool), lent *bool) (done bool, err error) {
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
		r.out.Lend(data, back)
		r.out.Write([][]byte{tail})
		r.lends.Store(true)
		*lent = true
	}
	return r.pump(false), nil
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
