package dispatch

import (
	"testing"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
)

// A generic call with two handles: decoding, looking up, calling.
func BenchmarkCall(b *testing.B) {
	h := session(b)
	payload := words(client(1), client(2))
	w := codec.NewWriter(make([]byte, 4096))
	var r codec.Reader
	var d cuda.Driver = byWord{}
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(payload)
		w.Reset()
		if _, err := Call(cuda.OpCuEventRecord, false, d, h, &r, w); err != nil {
			b.Fatal(err)
		}
	}
}
