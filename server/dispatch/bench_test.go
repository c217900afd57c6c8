package dispatch

import (
	"testing"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
)

type silent struct{ cuda.Unimplemented }

func (silent) CuEventRecord(cuda.CUevent, cuda.CUstream) cuda.CUresult { return 0 }

// A generic call with two handles: decoding, looking up, calling.
func BenchmarkCall(b *testing.B) {
	h := session(b)
	payload := words(client(1), client(2))
	w := codec.NewWriter(make([]byte, 4096))
	var r codec.Reader
	var d cuda.Driver = silent{}
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(payload)
		w.Reset()
		if _, err := Call(cuda.OpCuEventRecord, false, d, h, &r, w); err != nil {
			b.Fatal(err)
		}
	}
}
