package e2e

import (
	"slices"
	"testing"
)

// Programs that cannot do where a driver holds up every call that could be, with the reason; they do with those that an
// H200's driver holds up.
var needFree = map[string]string{
	"streams":    "sees that a stream is busy after such a call",
	"per_thread": "a thread's stream waits for what another thread has yet to send",
	"mapped":     "a kernel waits for a flag that goes behind a set or a copy within the GPU, which hold up nobody",
	"flood":      "a host function waits for what threads have yet to send",
	"progress":   "a host function waits for a thread that asks about its stream, for which an event may have to be made",
}

// TestHeldUp runs every program on a driver that holds the caller up, and other threads' calls with it, until the
// context's work is over.
func TestHeldUp(t *testing.T) {
	if gpu != "sim" {
		t.Skip("a real driver holds up what it holds up")
	}
	held, some := serve(t, "--gpu", "sim:hold=all"), serve(t, "--gpu", "sim:hold=measured")
	names := append(slices.Clone(all), "crowd", "elsewhere", "faults", "flood")
	t.Run("programs", func(t *testing.T) {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				beside(t)
				s := held
				if needFree[name] != "" {
					s = some
				}
				s.run(t, name)
			})
		}
	})
	some.run(t, "holdup") // where fewer calls wait, more goes on at once
}
