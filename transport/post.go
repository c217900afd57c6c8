package transport

import (
	"errors"
	"time"
)

// Post sends all of bufs as [Resumable.Send] does, but does not wait for a socket where the stream has none: what is
// posted meanwhile lies in the window, and goes over the next socket. It waits where the window is full.
func (r *Resumable) Post(bufs [][]byte) error {
	for {
		n, err := r.Send(bufs)
		switch {
		case err == nil:
			if bufs = behind(bufs, n); len(bufs) == 0 {
				return nil
			}
			continue
		case !errors.Is(err, ErrAgain):
			return err
		case r.leave(bufs):
			return nil
		case r.isFull():
			_, err = r.Wait(Writable, -1)
		default:
			_, err = r.poll(Writable, time.Second, nil) // it ends with the socket, and then there is nothing to wait for
		}
		if err != nil {
			return err
		}
	}
}

// leave says that bufs, which Send was offered last, lie in the window and there is no socket for them.
func (r *Resumable) leave(bufs [][]byte) bool {
	r.sending.Lock()
	defer r.sent()
	if st := r.state.Load(); st != resumeLost && st != resumeDetached {
		return false
	}
	all := 0
	for _, b := range bufs {
		all += len(b)
	}
	if r.accepted < all {
		return false
	}
	r.accepted = 0
	return true
}

// behind is what follows the first n bytes of bufs, of which it changes those that are begun.
func behind(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if len(bufs) > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
