package sim

import (
	"math/bits"

	"scuda.dev/scuda/api/cuda"
)

// array is a CUarray: rows, slices and layers without gaps in a region of its own.
type array struct {
	handle cuda.CUarray
	ctx    *cudaContext
	desc   cuda.CUDA_ARRAY3D_DESCRIPTOR
	elem   uint64 // bytes
	region *region
	whole  *mipmap // of a level
}

// mipmap is a CUmipmappedArray.
type mipmap struct {
	handle cuda.CUmipmappedArray
	ctx    *cudaContext
	levels []*array
}

func (a *array) owner() *cudaContext  { return a.ctx }
func (m *mipmap) owner() *cudaContext { return m.ctx }

// Flags of arrays; macros in C.
const (
	arrayLayered      = 1
	arraySurface      = 2
	arrayCubemap      = 4
	arrayGather       = 8
	arrayDepthTexture = 16
	arrayColor        = 32

	arrayFlags = arrayLayered | arraySurface | arrayCubemap | arrayGather | arrayDepthTexture | arrayColor

	maxArray1D, maxArray2D, maxArray3D = 131072, 131072, 16384
	maxLayers                          = 2048
)

func (a *array) rows() uint64   { return max(a.desc.Height, 1) }
func (a *array) slices() uint64 { return max(a.desc.Depth, 1) }
func (a *array) pitch() uint64  { return a.desc.Width * a.elem }

// channelBytes is the size of a component, 0 for formats that are not simulated.
func channelBytes(f cuda.CUarray_format) uint64 {
	switch f {
	case cuda.CU_AD_FORMAT_UNSIGNED_INT8, cuda.CU_AD_FORMAT_SIGNED_INT8:
		return 1
	case cuda.CU_AD_FORMAT_UNSIGNED_INT16, cuda.CU_AD_FORMAT_SIGNED_INT16, cuda.CU_AD_FORMAT_HALF:
		return 2
	case cuda.CU_AD_FORMAT_UNSIGNED_INT32, cuda.CU_AD_FORMAT_SIGNED_INT32, cuda.CU_AD_FORMAT_FLOAT:
		return 4
	}
	return 0
}

// checkArray says what the driver says of a description.
func checkArray(d *cuda.CUDA_ARRAY3D_DESCRIPTOR) cuda.CUresult {
	layered, cube := d.Flags&arrayLayered != 0, d.Flags&arrayCubemap != 0
	most := [3]uint64{maxArray1D, maxArray2D, maxArray3D}
	switch {
	case layered:
		most = [3]uint64{maxArray2D, maxArray2D, maxLayers}
	case d.Depth > 0:
		most = [3]uint64{maxArray3D, maxArray3D, maxArray3D}
	}
	switch {
	case d.Width == 0, d.NumChannels != 1 && d.NumChannels != 2 && d.NumChannels != 4,
		d.Height == 0 && d.Depth > 0 && !layered, d.Width > most[0], d.Height > most[1], d.Depth > most[2],
		layered && d.Depth == 0, cube && (d.Width != d.Height || d.Depth%6 != 0 || d.Depth == 0 || !layered && d.Depth != 6):
		return cuda.CUDA_ERROR_INVALID_VALUE
	case channelBytes(d.Format) == 0, d.Flags&^arrayFlags != 0:
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return ok
}

// newArray allocates an array; g.mu is held.
func (g *GPU) newArray(c *cudaContext, d cuda.CUDA_ARRAY3D_DESCRIPTOR) (*array, cuda.CUresult) {
	a := &array{ctx: c, desc: d, elem: channelBytes(d.Format) * uint64(d.NumChannels)}
	var r cuda.CUresult
	a.region, r = g.allocateOrWait(c, regionArray, a.pitch()*a.rows()*a.slices())
	if r != ok {
		return nil, r
	}
	if g.cfg.Contents == ContentsClear {
		clear(bytesAt(a.region.base, a.region.size))
	}
	a.handle = cuda.CUarray(g.objects.add(a))
	g.arrays.Store(a.handle, a)
	return a, ok
}

func (g *GPU) CuArray3DCreate_v2(ph *cuda.CUarray, d *cuda.CUDA_ARRAY3D_DESCRIPTOR) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || d == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	if r := checkArray(d); r != ok {
		return r
	}
	a, r := g.newArray(c, *d)
	if r == ok {
		*ph = a.handle
	}
	return r
}

func (g *GPU) CuArrayCreate_v2(ph *cuda.CUarray, d *cuda.CUDA_ARRAY_DESCRIPTOR) cuda.CUresult {
	if d == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.CuArray3DCreate_v2(ph, &cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: d.Width, Height: d.Height, Format: d.Format,
		NumChannels: d.NumChannels})
}

// array finds an array for a call.
func (g *GPU) array(h cuda.CUarray) (*array, cuda.CUresult) { return find[*array](g, h) }

func (g *GPU) readArray(h cuda.CUarray, null bool, read func(*array) cuda.CUresult) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	a, r := g.array(h)
	switch {
	case r != ok:
		return r
	case null:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return read(a)
}

func (g *GPU) CuArray3DGetDescriptor_v2(d *cuda.CUDA_ARRAY3D_DESCRIPTOR, h cuda.CUarray) cuda.CUresult {
	return g.readArray(h, d == nil, func(a *array) cuda.CUresult {
		*d = a.desc
		return ok
	})
}

func (g *GPU) CuArrayGetDescriptor_v2(d *cuda.CUDA_ARRAY_DESCRIPTOR, h cuda.CUarray) cuda.CUresult {
	return g.readArray(h, d == nil, func(a *array) cuda.CUresult {
		*d = cuda.CUDA_ARRAY_DESCRIPTOR{Width: a.desc.Width, Height: a.desc.Height, Format: a.desc.Format,
			NumChannels: a.desc.NumChannels}
		return ok
	})
}

// CuArrayGetPlane: the simulated formats have no planes.
func (g *GPU) CuArrayGetPlane(plane *cuda.CUarray, h cuda.CUarray, _ uint32) cuda.CUresult {
	return g.readArray(h, plane == nil, func(*array) cuda.CUresult { return cuda.CUDA_ERROR_INVALID_VALUE })
}

// CuArrayGetSparseProperties: no array here is sparse.
func (g *GPU) CuArrayGetSparseProperties(p *cuda.CUDA_ARRAY_SPARSE_PROPERTIES, h cuda.CUarray) cuda.CUresult {
	if h == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.readArray(h, p == nil, func(*array) cuda.CUresult { return cuda.CUDA_ERROR_INVALID_VALUE })
}

func (g *GPU) CuArrayDestroy(h cuda.CUarray) cuda.CUresult {
	return g.readArray(h, false, func(a *array) cuda.CUresult {
		if a.whole != nil { // levels go with their mipmapped array
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if r := g.unsafeInCapture(); r != ok {
			return r
		}
		return g.dropArrays(a)
	})
}

// dropArrays frees arrays when the work under way, which may use them, has ended. g.mu is held, and given up meanwhile.
func (g *GPU) dropArrays(list ...*array) cuda.CUresult {
	for _, a := range list {
		g.objects.drop(uint64(a.handle))
		g.arrays.Delete(a.handle)
	}
	r := g.work.waitContext(list[0].ctx)
	for _, a := range list {
		if err := g.freeRegion(a.region); err != nil {
			g.log.Error("sim: free", "error", err)
			return cuda.CUDA_ERROR_UNKNOWN
		}
	}
	return r
}

func (g *GPU) CuMipmappedArrayCreate(ph *cuda.CUmipmappedArray, d *cuda.CUDA_ARRAY3D_DESCRIPTOR,
	levels uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || d == nil || levels == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := checkArray(d); r != ok {
		return r
	}
	layered := d.Flags&(arrayLayered|arrayCubemap) != 0
	longest := max(d.Width, d.Height)
	if !layered {
		longest = max(longest, d.Depth)
	}
	levels = min(levels, uint32(bits.Len64(longest)))
	m := &mipmap{ctx: c}
	level := *d
	for range levels {
		a, r := g.newArray(c, level)
		if r != ok {
			if len(m.levels) > 0 {
				g.dropArrays(m.levels...)
			}
			return r
		}
		a.whole = m
		m.levels = append(m.levels, a)
		half := func(n uint64) uint64 { return max(n/2, min(n, 1)) }
		level.Width, level.Height = half(level.Width), half(level.Height)
		if !layered {
			level.Depth = half(level.Depth)
		}
	}
	m.handle = cuda.CUmipmappedArray(g.objects.add(m))
	*ph = m.handle
	return ok
}

func (g *GPU) CuMipmappedArrayGetLevel(ph *cuda.CUarray, h cuda.CUmipmappedArray, level uint32) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := find[*mipmap](g, h)
	switch {
	case r != ok:
		return r
	case ph == nil || int64(level) >= int64(len(m.levels)):
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*ph = m.levels[level].handle
	return ok
}

func (g *GPU) CuMipmappedArrayDestroy(h cuda.CUmipmappedArray) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	m, r := find[*mipmap](g, h)
	if r != ok {
		return r
	}
	g.objects.drop(uint64(h))
	return g.dropArrays(m.levels...)
}

// CuMipmappedArrayGetSparseProperties: no array here is sparse.
func (g *GPU) CuMipmappedArrayGetSparseProperties(p *cuda.CUDA_ARRAY_SPARSE_PROPERTIES,
	h cuda.CUmipmappedArray) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if _, r := find[*mipmap](g, h); r != ok {
		return r
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}

// arrayPlace is the place of a copy in an array. It needs no lock: whether the memory is still there is looked at when
// the copy runs.
func (g *GPU) arrayPlace(s copyEnd, b *copy3D) (place, cuda.CUresult) {
	x, found := g.arrays.Load(s.array)
	if !found {
		return place{}, cuda.CUDA_ERROR_INVALID_HANDLE
	}
	a := x.(*array)
	inside := func(at, n, limit uint64) bool { return at <= limit && n <= limit-at }
	if s.x%a.elem != 0 || b.width%a.elem != 0 || !inside(s.x, b.width, a.pitch()) || !inside(s.y, b.height, a.rows()) ||
		!inside(s.z, b.depth, a.slices()) {
		return place{}, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return place{addr: a.region.base + (s.z*a.rows()+s.y)*a.pitch() + s.x, pitch: a.pitch(), height: a.rows(),
		device: true}, ok
}

// rowOf is a row of n bytes in an array, for the forms that copy one.
func rowOf(h cuda.CUarray, off uint64) copyEnd {
	return copyEnd{kind: cuda.CU_MEMORYTYPE_ARRAY, array: h, x: off}
}

func (g *GPU) copyRow(dst, src copyEnd, n uint64) cuda.CUresult {
	if dst.kind == cuda.CU_MEMORYTYPE_ARRAY && dst.array == 0 || src.kind == cuda.CU_MEMORYTYPE_ARRAY && src.array == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	b, r := g.copyBetween(dst, src, n, 1, 1)
	if r != ok {
		return r
	}
	return g.copySync(b)
}

func (g *GPU) CuMemcpyDtoA_v2(dst cuda.CUarray, off uint64, src cuda.CUdeviceptr, n uint64) cuda.CUresult {
	return g.copyRow(rowOf(dst, off), copyEnd{kind: cuda.CU_MEMORYTYPE_DEVICE, dev: src}, n)
}

func (g *GPU) CuMemcpyAtoD_v2(dst cuda.CUdeviceptr, src cuda.CUarray, off, n uint64) cuda.CUresult {
	return g.copyRow(copyEnd{kind: cuda.CU_MEMORYTYPE_DEVICE, dev: dst}, rowOf(src, off), n)
}

func (g *GPU) CuMemcpyAtoA_v2(dst cuda.CUarray, dstOff uint64, src cuda.CUarray, srcOff, n uint64) cuda.CUresult {
	return g.copyRow(rowOf(dst, dstOff), rowOf(src, srcOff), n)
}
