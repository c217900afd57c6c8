package sim

import (
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// object makes a user object with one reference, and says how often it has ended.
func (m *machine) object() (o cuda.CUuserObject, ended func() int) {
	m.t.Helper()
	n := 0
	entry := m.HostNode(func() { n++ })
	m.must(m.CuUserObjectCreate(&o, at(uint64(entry.UserData)), at(uint64(entry.Fn)), 1,
		uint32(cuda.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)))
	return o, func() int { return n }
}

// embed makes a graph with a child that holds o, which the child's graph had from its caller.
func (m *machine) embed(o cuda.CUuserObject) (outer, child cuda.CUgraph) {
	m.t.Helper()
	var inner cuda.CUgraph
	var n cuda.CUgraphNode
	m.must(m.CuGraphCreate(&inner, 0))
	m.must(m.CuGraphRetainUserObject(inner, o, 1, graphUserObjectMove))
	m.must(m.CuGraphCreate(&outer, 0))
	m.must(m.CuGraphAddChildGraphNode(&n, outer, nil, 0, inner))
	m.must(m.CuGraphDestroy(inner))
	m.must(m.CuGraphChildGraphNodeGetGraph(n, &child))
	return outer, child
}

func TestUserObjectsOfChildren(t *testing.T) {
	m := open(t, Config{})
	t.Run("the outer graph lets go of what a child holds", func(t *testing.T) {
		o, ended := m.object()
		outer, _ := m.embed(o)
		m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphReleaseUserObject(outer, o, 2))
		if ended() != 0 {
			t.Error("ended while the child holds it")
		}
		m.must(m.CuGraphReleaseUserObject(outer, o, 1))
		if ended() != 1 {
			t.Errorf("ended %d times", ended())
		}
		m.must(m.CuGraphDestroy(outer))
		if ended() != 1 {
			t.Errorf("ended %d times", ended())
		}
	})
	t.Run("what an embedded child retains stays for ever", func(t *testing.T) {
		first, _ := m.object()
		outer, child := m.embed(first)
		o, ended := m.object()
		m.must(m.CuGraphRetainUserObject(child, o, 1, graphUserObjectMove))
		m.must(m.CuGraphDestroy(outer))
		if ended() != 0 {
			t.Errorf("ended %d times", ended())
		}
	})
}

// TestUserObjectsOfLostCapture: nobody can end the capture of a stream that is gone, so what its graph held goes with
// the stream.
func TestUserObjectsOfLostCapture(t *testing.T) {
	m := open(t, Config{})
	s := m.stream(cuda.CU_STREAM_NON_BLOCKING)
	o, ended := m.object()
	var status cuda.CUstreamCaptureStatus
	var id cuda.Cuuint64
	var gr cuda.CUgraph
	var n uint64
	m.must(m.CuStreamBeginCapture_v2(s, cuda.CU_STREAM_CAPTURE_MODE_RELAXED))
	m.must(m.CuStreamGetCaptureInfo_v2(s, &status, &id, &gr, nil, &n))
	m.must(m.CuGraphRetainUserObject(gr, o, 1, graphUserObjectMove))
	m.must(m.CuStreamDestroy_v2(s))
	if ended() != 1 {
		t.Errorf("ended %d times", ended())
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphDestroy(gr))
}
