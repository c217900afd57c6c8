package sim

import (
	"testing"

	"pgregory.net/rapid"

	"scuda.dev/scuda/api/cuda"
)

// TestHandles lets streams and events come and go: a live handle works as what it is and as nothing else, a dead one
// never works again.
func TestHandles(t *testing.T) {
	m := open(t, Config{})
	streams, events := map[cuda.CUstream]bool{}, map[cuda.CUevent]bool{}
	pick := func(t *rapid.T, n int) int { return rapid.IntRange(0, max(n-1, 0)).Draw(t, "which") }
	keys := func() (ss []cuda.CUstream, es []cuda.CUevent) {
		for s := range streams {
			ss = append(ss, s)
		}
		for e := range events {
			es = append(es, e)
		}
		return
	}
	expect := func(t *rapid.T, live bool, r cuda.CUresult) {
		want := cuda.CUDA_ERROR_INVALID_HANDLE
		if live {
			want = ok
		}
		if r != want {
			t.Fatalf("got %v, want %v", r, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				var s cuda.CUstream
				var e cuda.CUevent
				expect(t, true, m.CuStreamCreate(&s, 0))
				expect(t, true, m.CuEventCreate(&e, 0))
				if _, known := streams[s]; known || uint64(s) == uint64(e) {
					t.Fatalf("handle %#x given twice", s)
				}
				if _, known := events[e]; known {
					t.Fatalf("handle %#x given twice", e)
				}
				streams[s], events[e] = true, true
			},
			"stream": func(t *rapid.T) {
				ss, _ := keys()
				if len(ss) == 0 {
					t.Skip("none")
				}
				s := ss[pick(t, len(ss))]
				expect(t, streams[s], m.CuStreamQuery(s))
				expect(t, false, m.CuEventQuery(cuda.CUevent(s)))
				if rapid.Bool().Draw(t, "destroy") {
					expect(t, streams[s], m.CuStreamDestroy_v2(s))
					streams[s] = false
				}
			},
			"event": func(t *rapid.T) {
				_, es := keys()
				if len(es) == 0 {
					t.Skip("none")
				}
				e := es[pick(t, len(es))]
				expect(t, events[e], m.CuEventRecord(e, 0))
				expect(t, events[e], m.CuEventSynchronize(e))
				expect(t, false, m.CuStreamSynchronize(cuda.CUstream(e)))
				if rapid.Bool().Draw(t, "destroy") {
					expect(t, events[e], m.CuEventDestroy_v2(e))
					events[e] = false
				}
			},
			"garbage": func(t *rapid.T) {
				h := rapid.Uint64Min(3).Draw(t, "handle")
				if _, isStream := streams[cuda.CUstream(h)]; isStream {
					t.Skip("a real one")
				}
				expect(t, false, m.CuStreamQuery(cuda.CUstream(h)))
			},
		})
	})
}
