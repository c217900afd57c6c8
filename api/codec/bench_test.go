package codec

import "testing"

// Reading the parameters of a call and writing its reply.
func BenchmarkCodec(b *testing.B) {
	request := build(7, 3, "abc", 1, 5, "name\x00")
	w := NewWriter(aligned(256))
	var r Reader
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(request)
		w.Reset()
		r.U64()
		r.In(1)
		w.Out(&r, r.U64(), 8)
		r.Str()
		if err := r.End(); err != nil {
			b.Fatal(err)
		}
	}
}
