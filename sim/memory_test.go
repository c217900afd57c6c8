package sim

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"scuda.dev/scuda/api/cuda"
)

func TestArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 1 << 16
		a := arena{base: size, size: size, free: []span{{size, size}}}
		var live []span
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.Uint64Range(1, size/4).Draw(t, "n")
				align := uint64(1) << rapid.IntRange(0, 12).Draw(t, "align")
				base, found := a.alloc(n, align)
				if !found {
					t.Skip("full")
				}
				if base%align != 0 || base < a.base || base+n > a.base+a.size {
					t.Fatalf("alloc(%d, %d) = %#x", n, align, base)
				}
				for _, s := range live {
					if base < s.base+s.size && s.base < base+n {
						t.Fatalf("%#x+%d overlaps %v", base, n, s)
					}
				}
				live = append(live, span{base, n})
			},
			"release": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing to release")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				a.release(live[i].base, live[i].size)
				live = append(live[:i], live[i+1:]...)
			},
			"": func(t *rapid.T) {
				sum := uint64(0)
				for i, s := range a.free {
					sum += s.size
					if i > 0 && a.free[i-1].base+a.free[i-1].size >= s.base {
						t.Fatalf("free list not sorted and joined: %v", a.free)
					}
				}
				for _, s := range live {
					sum += s.size
				}
				if sum != size {
					t.Fatalf("%d bytes accounted for, want %d", sum, size)
				}
			},
		})
	})
}

func TestMemoryTable(t *testing.T) {
	var m memory
	for _, r := range []*region{{base: 100, size: 50}, {base: 150, size: 50}, {base: 300, size: 10}} {
		if err := m.insert(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.insert(&region{base: 199, size: 2}); err == nil {
		t.Error("overlapping region inserted")
	}
	for _, c := range []struct {
		addr, n uint64
		want    bool
	}{
		{100, 50, true}, {100, 100, true}, {149, 2, true}, {99, 1, false}, {100, 101, false}, {300, 10, true},
		{300, 11, false},
		{250, 1, false}, {309, 1, true}, {310, 1, false}, {300, ^uint64(0), false},
	} {
		if got := m.covers(c.addr, c.n); got != c.want {
			t.Errorf("covers(%d, %d) = %v", c.addr, c.n, got)
		}
	}
	r := m.find(160)
	if r == nil || r.base != 150 || !m.remove(r) || m.remove(r) || m.find(160) != nil {
		t.Error("find or remove")
	}
}

func TestAllocate(t *testing.T) {
	m := open(t, Config{})
	var free, total uint64
	m.must(m.CuMemGetInfo_v2(&free, &total))
	if free != testMemory || total != testMemory {
		t.Fatalf("%d of %d free", free, total)
	}
	a, b := m.alloc(1), m.alloc(1000)
	if a%allocAlign != 0 || b%allocAlign != 0 || a == b {
		t.Errorf("addresses %#x %#x", a, b)
	}
	m.must(m.CuMemGetInfo_v2(&free, nil))
	if free != testMemory-allocAlign-1024 {
		t.Errorf("%d free", free)
	}
	var p cuda.CUdeviceptr
	m.want(cuda.CUDA_ERROR_OUT_OF_MEMORY, m.CuMemAlloc_v2(&p, testMemory))
	m.want(cuda.CUDA_ERROR_OUT_OF_MEMORY, m.CuMemAlloc_v2(&p, ^uint64(0)))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemAlloc_v2(&p, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemAlloc_v2(nil, 1))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemFree_v2(a+1))
	m.must(m.CuMemFree_v2(0))
	m.must(m.CuMemFree_v2(a))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemFree_v2(a))

	var base cuda.CUdeviceptr
	var size uint64
	m.must(m.CuMemGetAddressRange_v2(&base, &size, b+7))
	if base != b || size != 1000 {
		t.Errorf("range %#x+%d", base, size)
	}
	m.want(cuda.CUDA_ERROR_NOT_FOUND, m.CuMemGetAddressRange_v2(&base, &size, a))
	m.must(m.CuMemFree_v2(b))
	c := m.alloc(testMemory)
	m.must(m.CuMemFree_v2(c))
}

func TestCopies(t *testing.T) {
	m := open(t, Config{})
	for _, n := range []int{0, 1, 3, 4096, stagedBytes, stagedBytes + 1, 1 << 20} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i*7 + n)
		}
		a, b := m.alloc(uint64(n)+1), m.alloc(uint64(n)+1)
		m.upload(a, data)
		m.must(m.CuMemcpyDtoD_v2(b, a, uint64(n)))
		if !bytes.Equal(m.download(b, n), data) {
			t.Errorf("%d bytes: wrong after copies", n)
		}
		// Asynchronous, from memory that is overwritten as soon as the call is back.
		src := m.pageable(n)
		copy(src, data)
		m.must(m.CuMemcpyHtoDAsync_v2(a, pointerTo(src), uint64(n), 0))
		clear(src)
		dst := m.pageable(n)
		m.must(m.CuMemcpyDtoHAsync_v2(pointerTo(dst), a, uint64(n), 0))
		if !bytes.Equal(dst, data) {
			t.Errorf("%d bytes: wrong after asynchronous copies", n)
		}
		m.must(m.CuMemFree_v2(a))
		m.must(m.CuMemFree_v2(b))
	}
	a, host := m.alloc(512), m.pageable(2048)
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpyHtoD_v2(a, pointerTo(host), 513))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpyHtoD_v2(a-4096, pointerTo(host), 4))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpyHtoD_v2(a, nil, 4))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpyDtoH_v2(pointerTo(host), a+512, 1))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuMemcpyDtoHAsync_v2(pointerTo(host), a, 1, 12345))
	// Unified addressing tells the sides apart by itself.
	copy(host, "unified")
	m.must(m.CuMemcpy(a, cuda.CUdeviceptr(addressOfBytes(host)), 8))
	m.must(m.CuMemcpy(cuda.CUdeviceptr(addressOfBytes(host[1024:])), a, 8))
	if string(host[1024:1031]) != "unified" {
		t.Errorf("got %q", host[1024:1031])
	}
}

// model is a byte-wise copy of up to three dimensions.
func model(dst, src []byte, p *cuda.CUDA_MEMCPY3D) {
	for z := range p.Depth {
		for y := range p.Height {
			d := ((p.DstZ+z)*p.DstHeight+p.DstY+y)*p.DstPitch + p.DstXInBytes
			s := ((p.SrcZ+z)*p.SrcHeight+p.SrcY+y)*p.SrcPitch + p.SrcXInBytes
			copy(dst[d:d+p.WidthInBytes], src[s:s+p.WidthInBytes])
		}
	}
}

func TestCopies3D(t *testing.T) {
	m := open(t, Config{})
	const size = 1 << 16
	src, out := m.pageable(size), m.pageable(size)
	for i := range src {
		src[i] = byte(i>>8) ^ byte(i)
	}
	dsrc, ddst := m.alloc(size), m.alloc(size)
	m.upload(dsrc, src)
	rapid.Check(t, func(t *rapid.T) {
		u := func(name string, lo, hi uint64) uint64 { return rapid.Uint64Range(lo, hi).Draw(t, name) }
		p := &cuda.CUDA_MEMCPY3D{WidthInBytes: u("w", 1, 24), Height: u("h", 1, 8), Depth: u("d", 1, 4)}
		p.SrcXInBytes, p.SrcY, p.SrcZ = u("sx", 0, 5), u("sy", 0, 3), u("sz", 0, 2)
		p.DstXInBytes, p.DstY, p.DstZ = u("dx", 0, 5), u("dy", 0, 3), u("dz", 0, 2)
		p.SrcPitch, p.SrcHeight = p.SrcXInBytes+p.WidthInBytes+u("sp", 0, 8), p.SrcY+p.Height+u("sh", 0, 2)
		p.DstPitch, p.DstHeight = p.DstXInBytes+p.WidthInBytes+u("dp", 0, 8), p.DstY+p.Height+u("dh", 0, 2)
		want := make([]byte, size)
		model(want, src, p)

		p.SrcMemoryType, p.SrcHost = cuda.CU_MEMORYTYPE_HOST, uintptr(addressOfBytes(src))
		if rapid.Bool().Draw(t, "src on device") {
			p.SrcMemoryType, p.SrcDevice = cuda.CU_MEMORYTYPE_DEVICE, dsrc
		}
		clear(out)
		if r := m.CuMemsetD8_v2(ddst, 0, size); r != ok {
			t.Fatal(r)
		}
		toDevice := rapid.Bool().Draw(t, "dst on device")
		p.DstMemoryType, p.DstHost = cuda.CU_MEMORYTYPE_HOST, uintptr(addressOfBytes(out))
		if toDevice {
			p.DstMemoryType, p.DstDevice = cuda.CU_MEMORYTYPE_DEVICE, ddst
		}
		if r := m.CuMemcpy3D_v2(p); r != ok {
			t.Fatal(r)
		}
		if toDevice {
			if r := m.CuMemcpyDtoH_v2(pointerTo(out), ddst, size); r != ok {
				t.Fatal(r)
			}
		}
		if !bytes.Equal(out, want) {
			t.Fatal("copied otherwise than the model")
		}
	})

	p2 := &cuda.CUDA_MEMCPY2D{
		SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, SrcDevice: dsrc, SrcPitch: 64,
		DstMemoryType: cuda.CU_MEMORYTYPE_HOST, DstHost: uintptr(addressOfBytes(out)), DstPitch: 16, WidthInBytes: 16,
		Height: 4,
	}
	m.must(m.CuMemcpy2D_v2(p2))
	if !bytes.Equal(out[16:32], src[64:80]) {
		t.Error("2D copy: second row is wrong")
	}
	p2.SrcPitch = 8
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpy2D_v2(p2))
	p2.SrcPitch, p2.Height = 64, size
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpy2D_v2(p2))
	p2.SrcMemoryType = cuda.CU_MEMORYTYPE_ARRAY
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuMemcpy2D_v2(p2))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemcpy3D_v2(nil))
}

func TestMemsets(t *testing.T) {
	m := open(t, Config{})
	p := m.alloc(4096)
	for _, c := range []struct {
		name string
		set  func() cuda.CUresult
		want []byte
	}{
		{"D8", func() cuda.CUresult { return m.CuMemsetD8_v2(p, 0xab, 3) }, []byte{0xab, 0xab, 0xab, 0}},
		{"D16", func() cuda.CUresult { return m.CuMemsetD16_v2(p, 0x1234, 2) }, []byte{0x34, 0x12, 0x34, 0x12, 0}},
		{"D32", func() cuda.CUresult { return m.CuMemsetD32_v2(p, 0x12345678, 1) }, []byte{0x78, 0x56, 0x34, 0x12, 0}},
		{"D8Async", func() cuda.CUresult { return m.CuMemsetD8Async(p, 1, 5, 0) }, []byte{1, 1, 1, 1, 1, 0}},
		{"D2D8", func() cuda.CUresult { return m.CuMemsetD2D8_v2(p, 4, 7, 2, 3) },
			[]byte{7, 7, 0, 0, 7, 7, 0, 0, 7, 7, 0, 0, 0}},
		{"D2D16", func() cuda.CUresult { return m.CuMemsetD2D16_v2(p, 4, 0x0201, 1, 2) }, []byte{1, 2, 0, 0, 1, 2, 0}},
		{"D2D32", func() cuda.CUresult { return m.CuMemsetD2D32_v2(p, 8, 1, 1, 2) }, []byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		{"nothing", func() cuda.CUresult { return m.CuMemsetD8_v2(p, 9, 0) }, []byte{0}},
	} {
		m.must(m.CuMemsetD8_v2(p, 0, 4096))
		m.must(c.set())
		if got := m.download(p, len(c.want)); !bytes.Equal(got, c.want) {
			t.Errorf("%s: got %x, want %x", c.name, got, c.want)
		}
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemsetD8_v2(p, 0, 4097))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemsetD32_v2(p+2, 0, 1))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemsetD2D8_v2(p, 1, 0, 2, 2))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMemsetD8_v2(4, 0, 1))
}
