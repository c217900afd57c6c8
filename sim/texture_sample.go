package sim

import (
	"encoding/binary"
	"math"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

// At is the memory of n bytes of a surface.
func (t *texture) At(geom ptx.Geometry, layer uint32, x, y, z int32, n int) []byte {
	l := &t.levels[0]
	switch geom {
	case ptx.TexLayered1D, ptx.TexLayered2D, ptx.TexCube, ptx.TexLayeredCube:
		if layer >= uint32(l.d) {
			return nil
		}
		z = int32(layer)
	}
	row := uint64(l.w) * channelBytes(t.format) * t.channels
	if x < 0 || y < 0 || z < 0 || uint64(x)+uint64(n) > row || int(y) >= l.h || int(z) >= l.d {
		return nil
	}
	return bytesAt(l.base+uint64(z)*l.slice+uint64(y)*l.pitch+uint64(x), uint64(n))
}

type vec [4]float32

// integers says whether the object's values are integers as they are.
func (t *texture) integers() bool {
	switch t.format {
	case cuda.CU_AD_FORMAT_HALF, cuda.CU_AD_FORMAT_FLOAT:
		return false
	case cuda.CU_AD_FORMAT_UNSIGNED_INT32, cuda.CU_AD_FORMAT_SIGNED_INT32:
		return true
	}
	return t.desc.Flags&readAsInteger != 0
}

// raw is the texel at a place inside of the level: the bits of floats, integers extended.
func (t *texture) raw(l *texels, x, y, z int) (out [4]uint32) {
	size := channelBytes(t.format)
	b := bytesAt(l.base+uint64(z)*l.slice+uint64(y)*l.pitch+uint64(x)*size*t.channels, size*t.channels)
	for i := range t.channels {
		c := b[i*size:]
		switch t.format {
		case cuda.CU_AD_FORMAT_UNSIGNED_INT8:
			out[i] = uint32(c[0])
		case cuda.CU_AD_FORMAT_SIGNED_INT8:
			out[i] = uint32(int32(int8(c[0])))
		case cuda.CU_AD_FORMAT_UNSIGNED_INT16:
			out[i] = uint32(binary.LittleEndian.Uint16(c))
		case cuda.CU_AD_FORMAT_SIGNED_INT16:
			out[i] = uint32(int32(int16(binary.LittleEndian.Uint16(c))))
		case cuda.CU_AD_FORMAT_HALF:
			out[i] = math.Float32bits(halfToFloat(binary.LittleEndian.Uint16(c)))
		default:
			out[i] = binary.LittleEndian.Uint32(c)
		}
	}
	return out
}

// value is the texel as floats.
func (t *texture) value(l *texels, x, y, z int) (v vec) {
	raw := t.raw(l, x, y, z)
	for i := range t.channels {
		switch t.format {
		case cuda.CU_AD_FORMAT_UNSIGNED_INT8:
			v[i] = float32(raw[i]) / 255
		case cuda.CU_AD_FORMAT_SIGNED_INT8:
			v[i] = max(float32(int32(raw[i]))/127, -1)
		case cuda.CU_AD_FORMAT_UNSIGNED_INT16:
			v[i] = float32(raw[i]) / 65535
		case cuda.CU_AD_FORMAT_SIGNED_INT16:
			v[i] = max(float32(int32(raw[i]))/32767, -1)
		default:
			v[i] = math.Float32frombits(raw[i])
		}
	}
	return v
}

func halfToFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	case exp == 0:
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// address brings an index into [0, n), or gives -1 for the border.
func address(i, n int, mode cuda.CUaddress_mode) int {
	switch mode {
	case cuda.CU_TR_ADDRESS_MODE_WRAP:
		return (i%n + n) % n
	case cuda.CU_TR_ADDRESS_MODE_MIRROR:
		i = (i%(2*n) + 2*n) % (2 * n)
		return min(i, 2*n-1-i)
	case cuda.CU_TR_ADDRESS_MODE_BORDER:
		if i < 0 || i >= n {
			return -1
		}
		return i
	}
	return max(0, min(i, n-1))
}

// axis is one coordinate: the two indices around it and how far it lies between them, in the 256 steps of the hardware.
type axis struct {
	i, j int
	part float32
}

func (t *texture) axis(u float32, n, dim int, linear bool) axis {
	mode := t.desc.AddressMode[dim]
	if t.desc.Flags&normalizedCoordinates != 0 {
		u *= float32(n)
	} else if mode == cuda.CU_TR_ADDRESS_MODE_WRAP || mode == cuda.CU_TR_ADDRESS_MODE_MIRROR {
		mode = cuda.CU_TR_ADDRESS_MODE_CLAMP // they are for normalised coordinates
	}
	const far = 1 << 24
	u = max(-far, min(u, far))
	if u != u { // not a number
		u = 0
	}
	if !linear {
		i := address(int(math.Floor(float64(u))), n, mode)
		return axis{i, i, 0}
	}
	f := math.Floor((float64(u)-0.5)*256 + 0.5)
	whole := math.Floor(f / 256)
	return axis{address(int(whole), n, mode), address(int(whole)+1, n, mode), float32(f-whole*256) / 256}
}

func (t *texture) border() vec { return vec(t.desc.BorderColor) }

func (t *texture) at(l *texels, x, y, z int) vec {
	if x < 0 || y < 0 || z < 0 {
		return t.border()
	}
	return t.value(l, x, y, z)
}

func mix(a, b vec, part float32) (v vec) {
	for i := range v {
		v[i] = a[i]*(1-part) + b[i]*part
	}
	return v
}

// point is where a query looks in a level: up to three axes, and a layer instead of the third.
type point struct {
	u     [3]float32
	dims  int
	layer int
}

func (t *texture) filtered(l *texels, p point) vec {
	linear := t.desc.FilterMode == cuda.CU_TR_FILTER_MODE_LINEAR
	x, y, z := t.axis(p.u[0], l.w, 0, linear), axis{}, axis{i: p.layer, j: p.layer}
	if p.dims > 1 {
		y = t.axis(p.u[1], l.h, 1, linear)
	}
	if p.dims > 2 {
		z = t.axis(p.u[2], l.d, 2, linear)
	}
	if !linear {
		return t.at(l, x.i, y.i, z.i)
	}
	plane := func(z int) vec {
		row := func(y int) vec { return mix(t.at(l, x.i, y, z), t.at(l, x.j, y, z), x.part) }
		if p.dims == 1 {
			return row(0)
		}
		return mix(row(y.i), row(y.j), y.part)
	}
	if p.dims < 3 {
		return plane(p.layer)
	}
	return mix(plane(z.i), plane(z.j), z.part)
}

// face finds where a direction meets a cube.
func face(x, y, z float32) (f int, u, v float32) {
	ax, ay, az := max(x, -x), max(y, -y), max(z, -z)
	var s, t, m float32
	switch {
	case ax >= ay && ax >= az && x >= 0:
		f, s, t, m = 0, -z, -y, ax
	case ax >= ay && ax >= az:
		f, s, t, m = 1, z, -y, ax
	case ay >= az && y >= 0:
		f, s, t, m = 2, x, z, ay
	case ay >= az:
		f, s, t, m = 3, x, -z, ay
	case z >= 0:
		f, s, t, m = 4, x, -y, az
	default:
		f, s, t, m = 5, -x, -y, az
	}
	return f, (s/m + 1) / 2, (t/m + 1) / 2
}

// place turns a query into a point; false for an index outside of linear memory.
func (t *texture) place(q *ptx.TexQuery) point {
	p := point{u: [3]float32{q.X, q.Y, q.Z}, dims: 1}
	if q.Integer {
		p.u = [3]float32{float32(q.XI), float32(q.YI), float32(q.ZI)}
	}
	last := t.levels[0].d - 1
	switch q.Geom {
	case ptx.Tex2D:
		p.dims = 2
	case ptx.Tex3D:
		p.dims = 3
	case ptx.TexLayered1D:
		p.layer = min(int(q.Layer), last)
	case ptx.TexLayered2D:
		p.dims, p.layer = 2, min(int(q.Layer), last)
	case ptx.TexCube, ptx.TexLayeredCube:
		f, u, v := face(p.u[0], p.u[1], p.u[2])
		p.dims, p.u, p.layer = 2, [3]float32{u, v}, min(f+6*int(min(q.Layer, 1<<16)), last)
	}
	return p
}

// Sample reads the texture as the hardware does.
func (t *texture) Sample(q *ptx.TexQuery) [4]uint32 {
	if t.linear {
		if q.XI < 0 || int(q.XI) >= t.levels[0].w {
			return [4]uint32{}
		}
		return t.finish(t.raw(&t.levels[0], int(q.XI), 0, 0), func() vec { return t.value(&t.levels[0], int(q.XI), 0, 0) })
	}
	p := t.place(q)
	if q.Gather >= 0 {
		return t.gather(p, q.Gather)
	}
	level, part := t.level(q)
	l := &t.levels[level]
	if t.integers() {
		x, y, z := t.axis(p.u[0], l.w, 0, false), axis{}, axis{i: p.layer}
		if p.dims > 1 {
			y = t.axis(p.u[1], l.h, 1, false)
		}
		if p.dims > 2 {
			z = t.axis(p.u[2], l.d, 2, false)
		}
		if x.i < 0 || y.i < 0 || z.i < 0 {
			return [4]uint32{}
		}
		return t.finish(t.raw(l, x.i, y.i, z.i), nil)
	}
	return t.finish([4]uint32{}, func() vec {
		v := t.filtered(l, p)
		if part > 0 {
			v = mix(v, t.filtered(&t.levels[level+1], p), part)
		}
		return v
	})
}

// level gives the level of detail: an index, and how far the next one is mixed in.
func (t *texture) level(q *ptx.TexQuery) (int, float32) {
	last := len(t.levels) - 1
	if last == 0 || !q.HasLevel {
		return 0, 0
	}
	lod := max(t.desc.MinMipmapLevelClamp, min(q.Level+t.desc.MipmapLevelBias, t.desc.MaxMipmapLevelClamp))
	lod = max(0, min(lod, float32(last)))
	if t.desc.MipmapFilterMode != cuda.CU_TR_FILTER_MODE_LINEAR {
		return min(int(lod+0.5), last), 0
	}
	lod = float32(math.Floor(float64(lod)*256+0.5)) / 256
	i := min(int(lod), last)
	return i, lod - float32(i)
}

// finish gives the bits of a result, with what the object's channels lack.
func (t *texture) finish(raw [4]uint32, floats func() vec) [4]uint32 {
	one := uint32(1)
	if !t.integers() {
		v := floats()
		raw = *reading[[4]uint32](&v)
		one = math.Float32bits(1)
	}
	if t.channels < 4 {
		raw[3] = one
	}
	return raw
}

// gather gives one component of the four texels that a linear filter would mix, from the lower left against the clock.
func (t *texture) gather(p point, component int) (out [4]uint32) {
	l := &t.levels[0]
	x, y := t.axis(p.u[0], l.w, 0, true), t.axis(p.u[1], l.h, 1, true)
	for i, at := range [4][2]int{{x.i, y.j}, {x.j, y.j}, {x.j, y.i}, {x.i, y.i}} {
		switch {
		case at[0] < 0 || at[1] < 0:
			out[i] = math.Float32bits(t.desc.BorderColor[component&3])
		case t.integers():
			out[i] = t.raw(l, at[0], at[1], p.layer)[component&3]
		default:
			out[i] = math.Float32bits(t.value(l, at[0], at[1], p.layer)[component&3])
		}
	}
	return out
}
