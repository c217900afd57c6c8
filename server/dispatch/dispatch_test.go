package dispatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/handle"
)

const (
	clientBase = 0x10000
	serverBase = 0x80000
	ownStream  = 0x7777 // the driver's stream behind per-thread default streams
)

type handles struct{ *handle.Table }

func (handles) PerThread() uint64 { return ownStream }

// Hide and Mean: the token of a value is its complement; 0 stands for nothing and has none.
func (handles) Hide(_ cuda.Kind, v *[64]byte) bool { return complement(v) }
func (handles) Mean(_ cuda.Kind, v *[64]byte) bool { return complement(v) }

func complement(v *[64]byte) bool {
	if *v == [64]byte{} {
		return false
	}
	for i := range v {
		v[i] = ^v[i]
	}
	return true
}

func client(i uint64) uint64 { return clientBase + i*handle.SlotBytes }

// driver records what it is asked to do.
type driver struct {
	cuda.Unimplemented
	calls  []string
	result cuda.CUresult
}

func (d *driver) log(format string, args ...any) cuda.CUresult {
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
	return d.result
}

func (d *driver) CuEventRecord(e cuda.CUevent, s cuda.CUstream) cuda.CUresult {
	return d.log("record %#x %#x", uint64(e), uint64(s))
}

func (d *driver) CuStreamCreate(s *cuda.CUstream, flags uint32) cuda.CUresult {
	*s = 0x500
	return d.log("create %d", flags)
}

func (d *driver) CuMemAlloc_v2(p *cuda.CUdeviceptr, n uint64) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*p = 0xd000
	return d.log("alloc %d", n)
}

func (d *driver) CuMemsetD8_v2(p cuda.CUdeviceptr, v uint8, n uint64) cuda.CUresult {
	return d.log("memset %#x %d %d", uint64(p), v, n)
}

func (d *driver) CuMemsetD8Async(p cuda.CUdeviceptr, v uint8, n uint64, s cuda.CUstream) cuda.CUresult {
	return d.log("memset %#x %d %d on %#x", uint64(p), v, n, uint64(s))
}

func (d *driver) CuMemcpy2D_v2(c *cuda.CUDA_MEMCPY2D) cuda.CUresult {
	return d.log("2d %#x", uint64(c.SrcArray))
}
func (d *driver) CuMemcpy2DAsync_v2(c *cuda.CUDA_MEMCPY2D, s cuda.CUstream) cuda.CUresult {
	return d.log("2d on %#x", uint64(s))
}
func (d *driver) CuStreamSynchronize(s cuda.CUstream) cuda.CUresult {
	return d.log("sync %#x", uint64(s))
}
func (d *driver) CuStreamSetAttribute(
	s cuda.CUstream, id cuda.CUstreamAttrID, v *cuda.CUstreamAttrValue,
) cuda.CUresult {
	w := (*[2]uint64)(unsafe.Pointer(v))
	return d.log("attribute %d %#x %#x", id, w[0], w[1])
}

func (d *driver) CuMemCreate(
	h *cuda.CUmemGenericAllocationHandle, size uint64, _ *cuda.CUmemAllocationProp, _ uint64,
) cuda.CUresult {
	*h = 0x5000
	return d.log("create %d", size)
}

func (d *driver) CuMemRelease(h cuda.CUmemGenericAllocationHandle) cuda.CUresult {
	return d.log("release %#x", uint64(h))
}

func (d *driver) CuCtxSetLimit(l cuda.CUlimit, v uint64) cuda.CUresult {
	return d.log("limit %d %d", l, v)
}

func (d *driver) CuGraphAddEmptyNode(
	n *cuda.CUgraphNode, g cuda.CUgraph, deps *cuda.CUgraphNode, count uint64,
) cuda.CUresult {
	*n = 0x900
	return d.log("node in %#x after %#x", uint64(g), unsafe.Slice((*uint64)(unsafe.Pointer(deps)), count))
}

func (d *driver) CuGraphGetNodes(g cuda.CUgraph, nodes *cuda.CUgraphNode, n *uint64) cuda.CUresult {
	if nodes == nil {
		*n = 3
		return d.log("count")
	}
	copy(unsafe.Slice(nodes, *n), []cuda.CUgraphNode{0x901, 0x902})
	*n = 2
	return d.log("nodes")
}

func (d *driver) CuGraphDestroy(g cuda.CUgraph) cuda.CUresult { return d.log("destroy %#x", uint64(g)) }

func (d *driver) CuGraphExecUpdate_v2(
	e cuda.CUgraphExec, g cuda.CUgraph, info *cuda.CUgraphExecUpdateResultInfo,
) cuda.CUresult {
	info.ErrorNode, info.Result = 0x905, 4
	return d.log("update")
}

func (d *driver) CuGraphInstantiateWithParams(
	e *cuda.CUgraphExec, g cuda.CUgraph, p *cuda.CUDA_GRAPH_INSTANTIATE_PARAMS,
) cuda.CUresult {
	*e, p.Result_out = 0x600, 1
	return d.log("instantiate on %#x", uint64(p.HUploadStream))
}

func (d *driver) CuTexObjectCreate(
	t *cuda.CUtexObject, res *cuda.CUDA_RESOURCE_DESC, tex *cuda.CUDA_TEXTURE_DESC, view *cuda.CUDA_RESOURCE_VIEW_DESC,
) cuda.CUresult {
	*t = 1
	return d.log("texture of %#x, view %v", *(*uint64)(unsafe.Add(unsafe.Pointer(res), 8)), view != nil)
}

func (d *driver) CuTensorMapEncodeTiled(
	m *cuda.CUtensorMap, _ cuda.CUtensorMapDataType, rank cuda.Cuuint32, address unsafe.Pointer, dim *cuda.Cuuint64,
	strides *cuda.Cuuint64, extent *cuda.Cuuint32, steps *cuda.Cuuint32, _ cuda.CUtensorMapInterleave,
	_ cuda.CUtensorMapSwizzle, _ cuda.CUtensorMapL2promotion, fill cuda.CUtensorMapFloatOOBfill,
) cuda.CUresult {
	m.Opaque[15] = 5
	return d.log("tensor %d at %#x stride %d fill %d", rank, uintptr(address), *strides, fill)
}

// aligned gives n bytes that are aligned to 8, as a payload is.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:n]
}

func read(payload []byte) *codec.Reader {
	r := &codec.Reader{}
	r.Reset(payload)
	return r
}

func words(values ...uint64) []byte {
	b := aligned(len(values) * 8)
	for i, v := range values {
		binary.LittleEndian.PutUint64(b[i*8:], v)
	}
	return b
}

func asBytes[T any](v T) []byte {
	b := aligned(int(unsafe.Sizeof(v)))
	copy(b, unsafe.Slice((*byte)(unsafe.Pointer(&v)), len(b)))
	return b
}

func join(parts ...[]byte) []byte {
	all := slices.Concat(parts...)
	b := aligned(len(all))
	copy(b, all)
	return b
}

func session(t testing.TB) handles {
	tab, err := handle.New(handle.Region{Base: clientBase, Slots: 64}, handle.Region{Base: serverBase, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range []struct {
		kind         cuda.Kind
		real, parent uint64
	}{{}, {cuda.KindEvent, 0x100, 0}, {cuda.KindStream, 0x200, 0}, {cuda.KindGraph, 0x300, 0},
		{cuda.KindGraphNode, 0x400, client(3)}, {cuda.KindGraphExec, 0x700, 0}, {cuda.KindArray, 0x800, 0}} {
		if o.kind == cuda.KindNone {
			continue
		}
		if err := tab.New(o.kind, client(uint64(i)), o.real, o.parent); err != nil {
			t.Fatal(err)
		}
	}
	return handles{tab}
}

func TestCall(t *testing.T) {
	array := cuda.CUDA_RESOURCE_DESC{ResType: cuda.CU_RESOURCE_TYPE_ARRAY}
	array.Res[0] = client(6)
	linear := cuda.CUDA_RESOURCE_DESC{ResType: cuda.CU_RESOURCE_TYPE_LINEAR}
	linear.Res[0] = client(6) // a device address that looks like a handle
	wrong := array
	wrong.Res[0] = client(7)
	for _, c := range []struct {
		name      string
		op        uint16
		perThread bool
		payload   []byte
		driver    cuda.CUresult
		want      cuda.CUresult
		calls     string
		reply     []byte
	}{
		{"handles by value", cuda.OpCuEventRecord, false, words(client(1), client(2)), 0, 0, "record 0x100 0x200", nil},
		{"legacy stream", cuda.OpCuEventRecord, false, words(client(1), 0), 0, 0, "record 0x100 0x0", nil},
		{"explicit legacy stream", cuda.OpCuEventRecord, true, words(client(1), 1), 0, 0, "record 0x100 0x1", nil},
		{"default stream of the per-thread form", cuda.OpCuEventRecord, true, words(client(1), 0), 0, 0,
			"record 0x100 0x7777", nil},
		{"per-thread stream", cuda.OpCuEventRecord, false, words(client(1), 2), 0, 0, "record 0x100 0x7777", nil},
		{"NULL handle", cuda.OpCuEventRecord, false, words(0, 0), 0, 0, "record 0x0 0x0", nil},
		{"handle of another kind", cuda.OpCuEventRecord, false, words(client(2), 0), 0, cuda.CUDA_ERROR_INVALID_HANDLE, "",
			nil},
		{"no handle", cuda.OpCuEventRecord, false, words(client(1), 3), 0, cuda.CUDA_ERROR_INVALID_HANDLE, "", nil},
		{"output", cuda.OpCuMemAlloc_v2, false, words(1, 64), 0, 0, "alloc 64", words(1, 0xd000)},
		{"output with a failure", cuda.OpCuMemAlloc_v2, false, words(1, 64), 2, 2, "alloc 64", nil},
		{"output nowhere", cuda.OpCuMemAlloc_v2, false, words(0, 64), 0, 1, "", nil},
		{"a limit that none is", cuda.OpCuCtxSetLimit, false, words(^uint64(2), 5), 0, 0, "limit 999 5", nil},
		{"creation", cuda.OpCuStreamCreate, false, words(client(9), 3), 0, 0, "create 3", nil},
		{"creation at NULL", cuda.OpCuStreamCreate, false, words(0, 3), 0, 1, "", nil},
		{"per-thread form without a stream", cuda.OpCuMemsetD8_v2, true, words(0xd000, 255, 16), 0, 0,
			"memset 0xd000 255 16 on 0x7777", nil},
		{"plain form without a stream", cuda.OpCuMemsetD8_v2, false, words(0xd000, 255, 16), 0, 0, "memset 0xd000 255 16",
			nil},
		{"array of handles", cuda.OpCuGraphAddEmptyNode, false, words(client(9), client(3), 2, client(4), 0, 2), 0, 0,
			"node in 0x300 after [0x400 0x0]", nil},
		{"array with garbage", cuda.OpCuGraphAddEmptyNode, false, words(client(9), client(3), 1, client(5), 1), 0,
			cuda.CUDA_ERROR_INVALID_HANDLE, "", nil},
		{"count asked for", cuda.OpCuGraphGetNodes, false, words(client(3), 0, 1, 0), 0, 0, "count", words(0, 1, 3)},
		{"handles returned", cuda.OpCuGraphGetNodes, false, words(client(3), 3, 1, 3), 0, 0, "nodes",
			words(3, serverBase, serverBase+64, 0, 1, 2)},
		{"outputs of a failure", cuda.OpCuGraphExecUpdate_v2, false, words(client(5), client(3), 1), 910, 910, "update",
			words(1, 4, serverBase, 0)},
		{"structure both ways", cuda.OpCuGraphInstantiateWithParams, false,
			words(client(9), client(3), 1, 0, client(2), 0, 0), 0, 0, "instantiate on 0x200", words(1, 0, client(2), 0, 1)},
		{"default stream in a structure", cuda.OpCuGraphInstantiateWithParams, true,
			words(client(9), client(3), 1, 0, 0, 0, 0), 0, 0, "instantiate on 0x7777", nil},
		{"handle in a union", cuda.OpCuTexObjectCreate, false,
			join(words(1, 1), asBytes(array), words(1), asBytes(cuda.CUDA_TEXTURE_DESC{}), words(0)), 0, 0,
			"texture of 0x800, view false", words(1, 1)},
		{"address in a union", cuda.OpCuTexObjectCreate, false,
			join(words(1, 1), asBytes(linear), words(1), asBytes(cuda.CUDA_TEXTURE_DESC{}), words(0)), 0, 0,
			fmt.Sprintf("texture of %#x, view false", client(6)), words(1, 1)},
		{"garbage in a union", cuda.OpCuTexObjectCreate, false,
			join(words(1, 1), asBytes(wrong), words(1), asBytes(cuda.CUDA_TEXTURE_DESC{}), words(0)), 0,
			cuda.CUDA_ERROR_INVALID_HANDLE, "", nil},
		{"copy between arrays", cuda.OpCuMemcpy2D_v2, false,
			join(words(1), asBytes(cuda.CUDA_MEMCPY2D{
				SrcMemoryType: cuda.CU_MEMORYTYPE_ARRAY, SrcArray: cuda.CUarray(client(6)),
				DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE,
			})), 0, 0, "2d 0x800", nil},
		{"no texture description", cuda.OpCuTexObjectCreate, false, join(words(1, 1), asBytes(linear), words(0, 0)), 0,
			cuda.CUDA_ERROR_INVALID_VALUE, "", nil},
		{"what is unused", cuda.OpCuMemcpy2D_v2, false,
			join(words(1), asBytes(cuda.CUDA_MEMCPY2D{
				SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, SrcArray: 77, SrcHost: 78, DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE,
			})), 0, 0, "2d 0x0", nil},
		{"no batch", cuda.OpCuStreamBatchMemOp_v2, false, words(0, 1, 0, 0), 0, cuda.CUDA_ERROR_INVALID_VALUE, "", nil},
		{"no place for an attribute", cuda.OpCuStreamGetAttribute, false, words(client(2), 1, 0), 0,
			cuda.CUDA_ERROR_INVALID_VALUE, "", nil},
		{"an attribute that nobody knows", cuda.OpCuStreamSetAttribute, false,
			words(client(2), 99, 1, 0, 0, 0, 0, 0, 0, 0, 0), 0, cuda.CUDA_ERROR_INVALID_VALUE, "", nil},
		{"an attribute with an event", cuda.OpCuStreamSetAttribute, false,
			words(client(2), 7, 1, client(1), 0, 0, 0, 0, 0, 0, 0), 0, 0, "attribute 7 0x100 0x0", nil},
		{"an attribute with garbage", cuda.OpCuStreamSetAttribute, false, words(client(2), 7, 1, 77, 0, 0, 0, 0, 0, 0, 0), 0,
			cuda.CUDA_ERROR_INVALID_HANDLE, "", nil},
		{"an attribute with a node of kernels", cuda.OpCuStreamSetAttribute, false,
			words(client(2), 13, 1, 1, 77, 0, 0, 0, 0, 0, 0), 0, 0, "attribute 13 0x1 0x0", nil},
		{"an object of nobody", cuda.OpCuMemRelease, false, words(77), 0, cuda.CUDA_ERROR_INVALID_VALUE, "", nil},
		{"a texture of nobody", cuda.OpCuTexObjectDestroy, false, words(77), 0, 0, "", nil},
		{"synchronous copy of the per-thread form", cuda.OpCuMemcpy2D_v2, true,
			join(words(1), asBytes(cuda.CUDA_MEMCPY2D{SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE})), 0, 0,
			"2d on 0x7777; sync 0x7777", nil},
		{"counts less one, opaque address", cuda.OpCuTensorMapEncodeTiled, false,
			words(1, 7, 2, 0xd000, 2, 8, 9, 1, 64, 2, 1, 2, 1, 0, 0, 0, 3), 0, 0, "tensor 2 at 0xd000 stride 64 fill 3",
			words(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5)},
		{"not implemented", cuda.OpCuCtxSynchronize, false, nil, 0, cuda.CUDA_ERROR_NOT_SUPPORTED, "", nil},
	} {
		h, d := session(t), &driver{result: c.driver}
		w := codec.NewWriter(aligned(4096))
		if c.op == cuda.OpCuTensorMapEncodeTiled {
			// extent and steps are arrays of two 32-bit values each: one word
			c.payload = words(1, 7, 2, 0xd000, 2, 8, 9, 1, 64, 2, 1<<32|1, 2, 1<<32|1, 0, 0, 0, 3)
		}
		r, err := Call(c.op, c.perThread, d, h, read(c.payload), w)
		if err != nil || r != c.want || strings.Join(d.calls, "; ") != c.calls {
			t.Errorf("%s: %v, %v, calls %q", c.name, r, err, d.calls)
		}
		if c.reply != nil && !slices.Equal(w.Bytes(), c.reply) || c.reply == nil && c.want != 0 && len(w.Bytes()) != 0 {
			t.Errorf("%s: reply %x, want %x", c.name, w.Bytes(), c.reply)
		}
	}
}

// A structure that would have the driver take an address of the client's for one of this process ends the session.
func TestHostMemoryIsNotTaken(t *testing.T) {
	for _, kind := range []cuda.CUmemorytype{cuda.CU_MEMORYTYPE_HOST, cuda.CU_MEMORYTYPE_UNIFIED} {
		plain := cuda.CUDA_MEMCPY2D{SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE}
		from, to := plain, plain
		from.SrcMemoryType, to.DstMemoryType = kind, kind
		for _, desc := range []cuda.CUDA_MEMCPY2D{from, to} {
			d := &driver{}
			_, err := Call(cuda.OpCuMemcpy2D_v2, false, d, session(t), read(join(words(1), asBytes(desc))),
				codec.NewWriter(aligned(64)))
			if !errors.Is(err, codec.ErrMalformed) || len(d.calls) != 0 {
				t.Errorf("%v: %v, calls %q", kind, err, d.calls)
			}
		}
	}
}

// Objects with numbers are the session's from their creation to their end.
func TestNumbersOfObjects(t *testing.T) {
	h, d, w := session(t), &driver{}, codec.NewWriter(aligned(64))
	release := func() cuda.CUresult {
		r, err := Call(cuda.OpCuMemRelease, false, d, h, read(words(0x5000)), w)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	prop := asBytes(cuda.CUmemAllocationProp{})
	r, err := Call(cuda.OpCuMemCreate, false, d, h, read(join(words(1, 4096, 1), prop, words(0))), w)
	if r != 0 || err != nil {
		t.Fatal(r, err)
	}
	if r := release(); r != 0 {
		t.Error(r)
	}
	if r := release(); r != cuda.CUDA_ERROR_INVALID_VALUE {
		t.Errorf("a second release: %v", r)
	}
	if got := strings.Join(d.calls, "; "); got != "create 4096; release 0x5000" {
		t.Error(got)
	}
}

func TestBookkeeping(t *testing.T) {
	h, d := session(t), &driver{}
	call := func(op uint16, payload []byte) cuda.CUresult {
		t.Helper()
		r, err := Call(op, false, d, h, read(payload), codec.NewWriter(aligned(256)))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	call(cuda.OpCuStreamCreate, words(client(9), 0))
	if v, ok := h.Real(cuda.KindStream, client(9)); !ok || v != 0x500 {
		t.Error("a created stream is not known")
	}
	_, err := Call(cuda.OpCuStreamCreate, false, d, h, read(words(client(9), 0)), codec.NewWriter(nil))
	if !errors.Is(err, codec.ErrMalformed) {
		t.Error("a handle in use was taken again:", err)
	}
	d.result = 2
	if call(cuda.OpCuStreamCreate, words(client(10), 0)); h.Kind(client(10)) != cuda.KindNone {
		t.Error("a stream that was not created is known")
	}
	if call(cuda.OpCuGraphDestroy, words(client(3))); h.Kind(client(3)) == cuda.KindNone {
		t.Error("a graph that was not destroyed is gone")
	}
	d.result = 0
	if call(cuda.OpCuGraphDestroy, words(client(3))); h.Kind(client(3)) != cuda.KindNone ||
		h.Kind(client(4)) != cuda.KindNone {
		t.Error("a destroyed graph or its node is still there")
	}
}

func TestMintingEnds(t *testing.T) {
	h, d := session(t), &driver{}
	for i := range uint64(4) {
		h.Client(cuda.KindEvent, 1000+i, 0)
	}
	w := codec.NewWriter(aligned(256))
	r, err := Call(cuda.OpCuGraphGetNodes, false, d, h, read(words(client(3), 3, 1, 3)), w)
	if r != cuda.CUDA_ERROR_OUT_OF_MEMORY || err != nil || len(w.Bytes()) != 0 {
		t.Error(r, err)
	}
}

func TestMalformed(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      uint16
		payload []byte
		want    error
	}{
		{"operation 0", 0, nil, ErrOperation},
		{"operation that there is not", 60000, nil, ErrOperation},
		{"operation without a generated form", cuda.OpCuLaunchKernel, nil, ErrOperation},
		{"too short", cuda.OpCuEventRecord, words(client(1)), codec.ErrMalformed},
		{"too long", cuda.OpCuEventRecord, words(client(1), 0, 0), codec.ErrMalformed},
		{"more dependencies than are there", cuda.OpCuGraphAddEmptyNode, words(client(9), client(3), 1, client(4), 2),
			codec.ErrMalformed},
		{"less room than the count says", cuda.OpCuGraphGetNodes, words(client(3), 2, 1, 3), codec.ErrMalformed},
		{"room beyond all bounds", cuda.OpCuGraphGetNodes, words(client(3), 1<<40, 1, 3), codec.ErrMalformed},
		{"half a structure", cuda.OpCuMemcpy2D_v2, words(1, 2), codec.ErrMalformed},
		{"handle outside of the region", cuda.OpCuStreamCreate, words(serverBase, 0), codec.ErrMalformed},
	} {
		d := &driver{}
		_, err := Call(c.op, false, d, session(t), read(c.payload), codec.NewWriter(aligned(256)))
		if !errors.Is(err, c.want) || len(d.calls) > 0 && c.op != cuda.OpCuStreamCreate {
			t.Errorf("%s: %v, calls %q", c.name, err, d.calls)
		}
	}
}

// byWord takes words, as the machine's driver does.
type byWord struct{ cuda.Unimplemented }

func (byWord) Call(op uint16, args *cuda.Words) cuda.CUresult {
	if op != cuda.OpCuEventRecord || args[0] != 0x100 || args[1] != 0x200 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return cuda.CUDA_SUCCESS
}

func TestAllocations(t *testing.T) {
	h, d := session(t), byWord{}
	r, w := read(nil), codec.NewWriter(aligned(256))
	payload := words(client(1), client(2))
	n := testing.AllocsPerRun(100, func() {
		r.Reset(payload)
		if result, err := Call(cuda.OpCuEventRecord, false, d, h, r, w); err != nil || result != cuda.CUDA_SUCCESS {
			t.Fatal(result, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// FuzzCall sends anything to every operation: only errors may come of it.
func FuzzCall(f *testing.F) {
	for op, m := range methods {
		if m != nil {
			f.Add(uint16(op), words(client(1), client(2), 0, 1, client(3)))
		}
	}
	f.Fuzz(func(t *testing.T, op uint16, payload []byte) {
		b := aligned(len(payload))
		copy(b, payload)
		w := codec.NewWriter(aligned(1024))
		h := session(t)
		before := h.Len()
		r, err := Call(op, op%2 == 0, &cuda.Unimplemented{}, h, read(b), w)
		if err != nil && !errors.Is(err, codec.ErrMalformed) && !errors.Is(err, ErrOperation) {
			t.Error(err)
		}
		if err == nil && r == cuda.CUDA_SUCCESS {
			t.Error("success without a driver")
		}
		if h.Len() != before {
			t.Error("handles changed")
		}
	})
}
