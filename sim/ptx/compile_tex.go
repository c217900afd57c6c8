package ptx

import (
	"maps"
	"strings"
)

func init() {
	maps.Copy(handlers, map[string]handler{"tex": hTex, "tld4": hTex, "suld": hSurface, "sust": hSurface})
}

func (i *ins) geometry() *geometryFact {
	for k := range geometries {
		if i.take(geometries[k].name) {
			return &geometries[k]
		}
	}
	return nil
}

// place resolves [object, {coordinates}]: the object's register and those of the layer (where there is one) and the
// coordinates.
func (i *ins) place(o *operand, g *geometryFact, t typ) (object int, coords []int, err error) {
	if o.kind != oAddr || len(o.list) != 1 || o.name == "" || o.val != 0 {
		return 0, nil, i.unsupported(": only an object with its coordinates is")
	}
	if object, err = i.src(&operand{kind: oName, name: o.name, pos: o.pos}, tU64); err != nil {
		return 0, nil, err
	}
	list := []operand{o.list[0]}
	if o.list[0].kind == oVec {
		list = o.list[0].list
	}
	need := g.coords
	if g.layered {
		need++
	}
	if len(list) != g.words && len(list) != need {
		return 0, nil, i.errorf("%d coordinates are needed, not %d", need, len(list))
	}
	for k := range list[:need] {
		ty := t
		if g.layered && k == 0 {
			ty = tU32
		}
		r, err := i.src(&list[k], ty)
		if err != nil {
			return 0, nil, err
		}
		coords = append(coords, r)
	}
	return object, coords, nil
}

func hTex(i *ins) error {
	level := i.take(".level")
	if !level {
		i.drop(".base")
	}
	gather := -1
	if i.s.op == "tld4" {
		c := i.oneOf(".r", ".g", ".b", ".a")
		if gather = strings.Index(".r.g.b.a", c) / 2; c == "" {
			return i.unsupported("")
		}
	}
	g := i.geometry()
	vector := i.take(".v4")
	to, from := i.typ(), i.typ()
	n := 2
	if level {
		n = 3
	}
	if g == nil || !vector || to.bits() != 32 || to.packed() ||
		from != tF32 && (from != tS32 || gather >= 0 || g.geom >= TexCube) {
		return i.unsupported("")
	}
	if len(i.mods) > 0 {
		return i.unsupported(": " + strings.Join(i.mods, "") + " is not known")
	}
	if err := i.args(n); err != nil {
		return err
	}
	dst, err := i.elements(&i.s.args[0], i.dst)
	if err != nil {
		return err
	}
	if len(dst) != 4 {
		return i.errorf("the destination must be a vector of 4")
	}
	object, coords, err := i.place(&i.s.args[1], g, from)
	if err != nil {
		return err
	}
	lod := 0
	if level {
		if lod, err = i.src(&i.s.args[2], from); err != nil {
			return err
		}
	}
	i.emitMem(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			var t Texture
			if all := w.blk.run.grid.Textures; all != nil {
				t = all.Texture(w.regs[object+l])
			}
			if t == nil {
				w.setFault(l, &Fault{Kind: IllegalAddress, Addr: w.regs[object+l], Message: "no texture object"})
				return
			}
			q := TexQuery{Geom: g.geom, Integer: from == tS32, HasLevel: level, Gather: gather}
			at := coords
			if g.layered {
				q.Layer = uint32(w.regs[at[0]+l])
				at = at[1:]
			}
			for k, r := range at {
				v := w.regs[r+l]
				*[...]*float32{&q.X, &q.Y, &q.Z}[k] = f32(v)
				*[...]*int32{&q.XI, &q.YI, &q.ZI}[k] = int32(v)
			}
			if level {
				if q.Level = f32(w.regs[lod+l]); from == tS32 {
					q.Level = float32(int32(w.regs[lod+l]))
				}
			}
			v := t.Sample(&q)
			for k, d := range dst {
				w.regs[d+l] = uint64(v[k])
			}
		}
	})
	return nil
}

// hSurface is suld.b and sust.b. What lies outside reads as zero and is not written, unless .trap asks for a fault;
// .clamp is not known because x counts bytes there.
func hSurface(i *ins) error {
	load := i.s.op == "suld"
	if !i.take(".b") {
		return i.unsupported("")
	}
	i.dropHints()
	g := i.geometry()
	mode := i.oneOf(".trap", ".zero")
	n := 1
	if v := i.oneOf(".v2", ".v4"); v != "" {
		n = int(v[2] - '0')
	}
	t := i.typ()
	size := t.bytes()
	if g == nil || mode == "" || !t.isBits() || size > 8 || size*n > 16 || g.geom >= TexCube {
		return i.unsupported("")
	}
	regs, at, err := i.transfer(load, t, n)
	if err != nil {
		return err
	}
	object, coords, err := i.place(at, g, tS32)
	if err != nil {
		return err
	}
	i.emitMem(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			var s Surface
			if all := w.blk.run.grid.Textures; all != nil {
				s = all.Surface(w.regs[object+l])
			}
			if s == nil {
				w.setFault(l, &Fault{Kind: IllegalAddress, Addr: w.regs[object+l], Message: "no surface object"})
				return
			}
			var layer uint32
			at := coords
			if g.layered {
				layer = uint32(w.regs[at[0]+l])
				at = at[1:]
			}
			var xyz [3]int32
			for k, r := range at {
				xyz[k] = int32(w.regs[r+l])
			}
			b := s.At(g.geom, layer, xyz[0], xyz[1], xyz[2], size*n)
			if b == nil && mode == ".trap" {
				w.setFault(l, &Fault{Kind: IllegalAddress, Size: size * n, Write: !load, Message: "outside of the surface"})
				return
			}
			for k, r := range regs {
				switch {
				case load && b == nil:
					w.regs[r+l] = 0
				case load:
					w.regs[r+l] = readInt(b[k*size:], size)
				case b != nil:
					writeInt(b[k*size:], size, w.regs[r+l])
				}
			}
		}
	})
	return nil
}
