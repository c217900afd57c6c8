package sim

import (
	"context"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

// texture is a texture or surface object: descriptions as they were given, and the memory behind them.
type texture struct {
	gpu      *GPU
	ctx      *cudaContext
	surface  bool
	res      cuda.CUDA_RESOURCE_DESC
	desc     cuda.CUDA_TEXTURE_DESC
	view     *cuda.CUDA_RESOURCE_VIEW_DESC
	format   cuda.CUarray_format
	channels uint64
	linear   bool // fetched by index alone
	cube     bool
	levels   []texels
}

// texels is one level.
type texels struct {
	base, pitch, slice uint64
	w, h, d            int // in elements, rows, slices or layers
}

func (t *texture) owner() *cudaContext { return t.ctx }

const (
	readAsInteger         = 1 // CU_TRSF_…
	normalizedCoordinates = 2
	texturePitchAlign     = 32
)

func (a *array) texels() texels {
	return texels{a.region.base, a.pitch(), a.pitch() * a.rows(), int(a.desc.Width), int(a.rows()), int(a.slices())}
}

// newTexture reads a resource. g.mu is held.
func (g *GPU) newTexture(c *cudaContext, res *cuda.CUDA_RESOURCE_DESC) (*texture, cuda.CUresult) {
	t := &texture{gpu: g, ctx: c, res: *res}
	of := func(list ...*array) {
		t.format, t.channels = list[0].desc.Format, uint64(list[0].desc.NumChannels)
		t.cube = list[0].desc.Flags&arrayCubemap != 0
		for _, a := range list {
			t.levels = append(t.levels, a.texels())
		}
	}
	w := &res.Res
	if res.ResType == cuda.CU_RESOURCE_TYPE_LINEAR || res.ResType == cuda.CU_RESOURCE_TYPE_PITCH2D {
		t.format, t.channels = cuda.CUarray_format(int32(w[1])), w[1]>>32
		if channelBytes(t.format) == 0 || t.channels != 1 && t.channels != 2 && t.channels != 4 || w[0] == 0 {
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	elem := channelBytes(t.format) * t.channels
	switch res.ResType {
	case cuda.CU_RESOURCE_TYPE_ARRAY:
		a, r := g.array(cuda.CUarray(w[0]))
		if r != ok {
			return nil, r
		}
		of(a)
	case cuda.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		m, r := find[*mipmap](g, cuda.CUmipmappedArray(w[0]))
		if r != ok {
			return nil, r
		}
		of(m.levels...)
	case cuda.CU_RESOURCE_TYPE_LINEAR:
		n := w[2] / elem
		if n == 0 || n > 1<<28 {
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
		t.linear, t.levels = true, []texels{{w[0], n * elem, n * elem, int(n), 1, 1}}
	case cuda.CU_RESOURCE_TYPE_PITCH2D:
		if w[2] == 0 || w[3] == 0 || w[2] > maxArray2D || w[3] > maxArray2D || w[4] < w[2]*elem ||
			w[4]%texturePitchAlign != 0 || w[4] > 1<<31 {
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
		t.levels = []texels{{w[0], w[4], w[4] * w[3], int(w[2]), int(w[3]), 1}}
	default:
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if !t.there() {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return t, ok
}

// there says whether the memory behind the object is still allocated.
func (t *texture) there() bool {
	elem := channelBytes(t.format) * t.channels
	for i := range t.levels {
		l := &t.levels[i]
		if !t.gpu.mem.covers(l.base, uint64(l.d-1)*l.slice+uint64(l.h-1)*l.pitch+uint64(l.w)*elem) {
			return false
		}
	}
	return true
}

func (g *GPU) CuTexObjectCreate(ph *cuda.CUtexObject, res *cuda.CUDA_RESOURCE_DESC, desc *cuda.CUDA_TEXTURE_DESC,
	view *cuda.CUDA_RESOURCE_VIEW_DESC) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || res == nil || desc == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	t, r := g.newTexture(c, res)
	if r != ok {
		return r
	}
	t.desc = *desc
	if view != nil {
		v := *view
		t.view = &v
		if v.FirstMipmapLevel > v.LastMipmapLevel || int64(v.LastMipmapLevel) >= int64(len(t.levels)) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if v.FirstLayer != 0 || v.LastLayer != 0 && int64(v.LastLayer) != int64(t.levels[0].d-1) {
			return cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		t.levels = t.levels[v.FirstMipmapLevel : v.LastMipmapLevel+1]
	}
	h := g.objects.add(t)
	g.textures.Store(h, t)
	*ph = cuda.CUtexObject(h)
	return ok
}

func (g *GPU) CuSurfObjectCreate(ph *cuda.CUsurfObject, res *cuda.CUDA_RESOURCE_DESC) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || res == nil || res.ResType != cuda.CU_RESOURCE_TYPE_ARRAY {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	a, r := g.array(cuda.CUarray(res.Res[0]))
	if r != ok {
		return r
	}
	if a.desc.Flags&arraySurface == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	t, r := g.newTexture(c, res)
	if r != ok {
		return r
	}
	t.surface = true
	h := g.objects.add(t)
	g.textures.Store(h, t)
	*ph = cuda.CUsurfObject(h)
	return ok
}

// destroyTexture ends an object for the program at once, and for kernels behind the work that its context has been
// given: launches that were made before may still read it.
func (g *GPU) destroyTexture(h uint64, surface bool) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	t, found := lookup[*texture](g, h)
	if !found || t.surface != surface {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	g.objects.drop(h)
	pending := t.ctx.pending()
	if len(pending) == 0 {
		g.textures.Delete(h)
		return ok
	}
	g.work.after(t.ctx, func(context.Context) error {
		g.textures.Delete(h)
		return nil
	}, pending...)
	return ok
}

func (g *GPU) CuTexObjectDestroy(h cuda.CUtexObject) cuda.CUresult {
	if h == 0 {
		return ok
	}
	return g.destroyTexture(uint64(h), false)
}

func (g *GPU) CuSurfObjectDestroy(h cuda.CUsurfObject) cuda.CUresult {
	if h == 0 {
		return ok
	}
	return g.destroyTexture(uint64(h), true)
}

func (g *GPU) readTexture(h uint64, surface, null bool, read func(*texture) cuda.CUresult) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	t, found := lookup[*texture](g, h)
	if !found || t.surface != surface || null {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return read(t)
}

func (g *GPU) CuTexObjectGetResourceDesc(d *cuda.CUDA_RESOURCE_DESC, h cuda.CUtexObject) cuda.CUresult {
	return g.readTexture(uint64(h), false, d == nil, func(t *texture) cuda.CUresult {
		*d = t.res
		return ok
	})
}

func (g *GPU) CuTexObjectGetTextureDesc(d *cuda.CUDA_TEXTURE_DESC, h cuda.CUtexObject) cuda.CUresult {
	return g.readTexture(uint64(h), false, d == nil, func(t *texture) cuda.CUresult {
		*d = t.desc
		return ok
	})
}

func (g *GPU) CuTexObjectGetResourceViewDesc(d *cuda.CUDA_RESOURCE_VIEW_DESC, h cuda.CUtexObject) cuda.CUresult {
	return g.readTexture(uint64(h), false, d == nil, func(t *texture) cuda.CUresult {
		*d = cuda.CUDA_RESOURCE_VIEW_DESC{}
		if t.view != nil {
			*d = *t.view
		}
		return ok
	})
}

func (g *GPU) CuSurfObjectGetResourceDesc(d *cuda.CUDA_RESOURCE_DESC, h cuda.CUsurfObject) cuda.CUresult {
	return g.readTexture(uint64(h), true, d == nil, func(t *texture) cuda.CUresult {
		*d = t.res
		return ok
	})
}

// textureTable is what kernels reach.
type textureTable struct{ gpu *GPU }

func (x textureTable) find(h uint64, surface bool) *texture {
	if v, found := x.gpu.textures.Load(h); found {
		if t := v.(*texture); t.surface == surface && t.there() {
			return t
		}
	}
	return nil
}

// Texture finds a texture object.
func (x textureTable) Texture(h uint64) ptx.Texture {
	if t := x.find(h, false); t != nil {
		return t
	}
	return nil
}

// Surface finds a surface object.
func (x textureTable) Surface(h uint64) ptx.Surface {
	if t := x.find(h, true); t != nil {
		return t
	}
	return nil
}
