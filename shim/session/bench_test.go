package session

import (
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/transport"
)

// The ring: commands that nobody waits for, up to the server's having read them.
func BenchmarkRing(b *testing.B) {
	p, f := newPeer(b), newFront(b, 1<<20)
	p.drop = true
	s, _ := p.open(f, nil)
	payload := make([]byte, 96)
	b.SetBytes(int64(len(payload) + transport.CommandHeaderSize))
	b.ReportAllocs()
	for b.Loop() {
		f.async(opNote, 0, payload)
	}
	for atomic.LoadUint64(&f.shared.Head) != atomic.LoadUint64(&f.shared.Tail) && s.lost() == 0 {
		schedYield()
	}
}
