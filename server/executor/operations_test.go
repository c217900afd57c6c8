package executor

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"scuda.dev/scuda/api"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// TestEveryOperation sends payloads of each operation of wire.spec, made from the description. One that is cut short
// ends the session with the reason. One of zeros or ones, with a tail or without, is answered or ends the session with
// the reason.
func TestEveryOperation(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, s := range spec.Wire {
		if s.Op == 0 {
			continue
		}
		seen++
		for n := 0; n < s.Size && !ignored(s); n += max(8, (s.Size-8)/16*8) {
			t.Run(fmt.Sprintf("%s/%d of %d bytes", s.Name, n, s.Size), func(t *testing.T) {
				t.Parallel()
				c := connect(t)
				c.send(s.Op, make([]byte, n))
				if err := c.wait(); !errors.Is(err, ErrProtocol) {
					t.Fatalf("ended with %v, want a protocol error", err)
				}
				<-c.lost
				if len(c.notices) != 1 {
					t.Errorf("notices %q, want the reason", c.notices)
				}
			})
		}
		for _, fill := range []byte{0, 0xff} {
			for _, tail := range []int{0, 64} {
				t.Run(fmt.Sprintf("%s/of %#x, %d more bytes", s.Name, fill, tail), func(t *testing.T) {
					t.Parallel()
					c := connect(t)
					pong := make(chan message, 1)
					c.mu.Lock()
					c.tolerant = true // the operation's own answers are of no interest
					c.replies[1] = pong
					c.mu.Unlock()
					payload := bytes.Repeat([]byte{fill}, s.Size+tail)
					c.write(frame(c.command(0, s.Op, transport.FlagAnswer, payload),
						c.command(1, wire.OpPing, transport.FlagAnswer, words(0))))
					select {
					case <-pong:
					case <-c.lost:
						if err := c.wait(); !errors.Is(err, ErrProtocol) {
							t.Errorf("ended with %v, want a protocol error", err)
						}
					case <-time.After(deadline):
						t.Error("neither served on nor ended")
					}
				})
			}
		}
	}
	if seen < 30 {
		t.Errorf("%d operations", seen)
	}
}

// TestOperationsWithoutForm sends the numbers of functions that travel in another form, or not at all: each ends the
// session with the reason.
func TestOperationsWithoutForm(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range spec.CUDA.Funcs {
		if fn.Op == 0 || fn.Generic || fn.PTSZ {
			continue
		}
		t.Run(fn.Name, func(t *testing.T) {
			t.Parallel()
			c := connect(t)
			c.send(fn.Op, make([]byte, 256))
			if err := c.wait(); !errors.Is(err, ErrProtocol) {
				t.Fatalf("ended with %v, want a protocol error", err)
			}
		})
	}
}

// ignored says whether nothing of a payload is looked at.
func ignored(s api.WireStruct) bool {
	return !slices.ContainsFunc(s.Fields, func(f api.Field) bool { return f.Name != "reserved" })
}
