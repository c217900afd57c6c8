package ptx

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strings"
)

var spaceByName = map[string]varSpace{".reg": vsReg, ".global": vsGlobal, ".const": vsConst, ".shared": vsShared,
	".local": vsLocal, ".param": vsParam}

// declarator reads what stands between a state space and a name.
func (p *parser) declarator(space token) (*variable, error) {
	v := &variable{space: spaceByName[space.text], vector: 1, pos: space.pos}
	pointer := false
	for {
		t, err := p.peek(0)
		if err != nil {
			return nil, err
		}
		if t.kind != tokDot {
			break
		}
		p.skip()
		switch t.text {
		case ".align":
			n, err := p.integer()
			if err != nil {
				return nil, err
			}
			if n == 0 || n&(n-1) != 0 || n > 1<<20 {
				return nil, errAt(t.pos, "alignment %d is no small power of two", n)
			}
			if !pointer {
				v.align = n
			}
		case ".attribute":
			if err := p.attribute(v); err != nil {
				return nil, err
			}
		case ".ptr":
			pointer = true
		case ".global", ".const", ".shared", ".local", ".shared::cta", ".shared::cluster":
			if !pointer {
				return nil, errAt(t.pos, "a type is expected, not %v", t)
			}
		case ".v2", ".v4":
			v.vector = int(t.text[2] - '0')
		default:
			ty := typeByName[t.text]
			if ty == tNone {
				return nil, unsupportedAt(t.pos, "type %s is not supported", t.text)
			}
			if v.elem != tNone {
				return nil, errAt(t.pos, "a second type %v", t)
			}
			v.elem = ty
		}
	}
	if v.elem == tNone {
		return nil, errAt(space.pos, "%s without a type", space.text)
	}
	if v.elem == tPred && v.space != vsReg {
		return nil, errAt(space.pos, "predicates are registers")
	}
	v.size = uint64(v.elem.bytes() * v.vector)
	if v.align == 0 && v.space != vsReg {
		v.align = max(v.size, 1)
	}
	return v, nil
}

func (p *parser) attribute(v *variable) error {
	if err := p.expect("("); err != nil {
		return err
	}
	for {
		t, err := p.next()
		if err != nil {
			return err
		}
		switch t.text {
		case ".managed":
			v.global = &Global{Managed: true}
		case ".unified":
			if err := p.skipParens(); err != nil {
				return err
			}
		default:
			return unsupportedAt(t.pos, "attribute %s is not known", t.text)
		}
		if more, err := p.accept(","); err != nil {
			return err
		} else if !more {
			return p.expect(")")
		}
	}
}

// dimensions reads [n][m]… behind a name; dims receives them where wanted. A first dimension may be empty.
func (p *parser) dimensions(v *variable, dims *[]uint64) error {
	for i := 0; ; i++ {
		open, err := p.accept("[")
		if err != nil || !open {
			return err
		}
		t, err := p.peek(0)
		if err != nil {
			return err
		}
		n := uint64(0)
		if !t.is("]") {
			if n, err = p.integer(); err != nil {
				return err
			}
		} else if i > 0 {
			return errAt(t.pos, "only the first dimension may be empty")
		}
		hi, size := bits.Mul64(v.size, n)
		if hi != 0 || size > maxVariable || i > 16 {
			return errAt(t.pos, "variable is too large")
		}
		if dims != nil {
			*dims = append(*dims, n)
		}
		v.size, v.dims = size, i+1
		if err := p.expect("]"); err != nil {
			return err
		}
	}
}

// variables reads a declaration behind its state space, to the semicolon.
func (p *parser) variables(space token, link linkage) error {
	proto, err := p.declarator(space)
	if err != nil {
		return err
	}
	for {
		name, err := p.ident()
		if err != nil {
			return err
		}
		v := *proto
		v.name, v.pos, v.extern = name.text, name.pos, link.extern
		if v.space == vsReg {
			err = p.registers(name, v.elem, v.vector)
		} else {
			err = p.variable(name, &v, link)
		}
		if err != nil {
			return err
		}
		if more, err := p.accept(","); err != nil {
			return err
		} else if !more {
			return p.expect(";")
		}
	}
}

func (p *parser) registers(name token, ty typ, vector int) error {
	if ty == tB128 {
		return unsupportedAt(name.pos, "registers of 128 bits are not supported")
	}
	if many, err := p.accept("<"); err != nil {
		return err
	} else if many {
		n, err := p.integer()
		if err != nil {
			return err
		}
		if n > maxRegisters {
			return errAt(name.pos, "%d registers are too many", n)
		}
		if p.scope.ranges == nil {
			p.scope.ranges = map[string]regRange{}
		}
		if _, twice := p.scope.ranges[name.text]; twice {
			return errAt(name.pos, "%s<> is declared twice", name.text)
		}
		p.scope.ranges[name.text] = regRange{n, ty, vector}
		return p.expect(">")
	}
	if p.scope.names[name.text] != nil {
		return errAt(name.pos, "%s is declared twice", name.text)
	}
	p.scope.newRegister(name.text, ty, vector)
	return nil
}

func (p *parser) variable(name token, v *variable, link linkage) error {
	var dims []uint64
	if err := p.dimensions(v, &dims); err != nil {
		return err
	}
	managed := v.global != nil
	v.global = nil
	switch v.space {
	case vsGlobal, vsConst:
		v.global = &Global{Name: v.name, Space: SpaceGlobal, Size: v.size, Align: v.align, Managed: managed,
			Extern: link.extern, Visible: link.visible}
		if v.space == vsConst {
			v.global.Space = SpaceConst
		}
	case vsShared:
		if v.size > maxShared {
			return errAt(name.pos, "shared variable %s is larger than %d bytes", v.name, maxShared)
		}
	case vsLocal:
		p.fn.local = alignUp(p.fn.local, v.align)
		v.offset = p.fn.local
		p.fn.local += v.size
		if p.fn.local > maxLocal {
			return errAt(name.pos, "local memory of %s is larger than %d bytes", p.fn.name, maxLocal)
		}
	case vsParam:
		p.fn.addParam(v)
		if p.fn.params > maxLocal {
			return errAt(name.pos, "call parameters of %s are larger than %d bytes", p.fn.name, maxLocal)
		}
	}
	// A variable declared extern may be defined later in the same text.
	if prev := p.scope.names[v.name]; prev != nil && prev.kind == symVariable && prev.v.extern && prev.v.global != nil &&
		v.global != nil {
		old := prev.v
		*old.global = *v.global
		v.global = old.global
		*old = *v
		v = old
	} else {
		if err := p.declare(name, &symbol{kind: symVariable, v: v}); err != nil {
			return err
		}
		if v.global != nil {
			p.mod.Globals = append(p.mod.Globals, v.global)
		}
	}
	eq, err := p.accept("=")
	if err != nil || !eq {
		return err
	}
	if v.global == nil {
		return errAt(name.pos, "only .global and .const variables can have initial values")
	}
	if v.vector > 1 {
		dims = append(dims, uint64(v.vector))
	}
	if len(dims) > 0 && dims[0] == 0 {
		return p.unsized(v, dims)
	}
	_, err = p.initialiser(v, dims, 0)
	return err
}

// unsized gives an array without a size the size of its initialiser.
func (p *parser) unsized(v *variable, dims []uint64) error {
	inner := uint64(v.elem.bytes())
	for _, d := range dims[1:] {
		inner *= d
	}
	if inner == 0 || inner > maxVariable {
		return errAt(v.pos, "variable %s has no size", v.name)
	}
	dims[0] = maxVariable / inner
	v.global.Size = maxVariable
	n, err := p.initialiser(v, dims, 0)
	v.size = n * inner
	v.global.Size = v.size
	return err
}

// initialiser reads one value or braces of them at an offset; for braces it returns how many elements of its first
// dimension were given.
func (p *parser) initialiser(v *variable, dims []uint64, offset uint64) (uint64, error) {
	t, err := p.peek(0)
	if err != nil {
		return 0, err
	}
	if t.kind == tokString && len(dims) == 1 && v.elem.bytes() == 1 {
		p.skip()
		text, err := unquote(t)
		if err != nil {
			return 0, err
		}
		if uint64(len(text)) > dims[0] {
			return 0, errAt(t.pos, "the string is longer than the array")
		}
		return uint64(len(text)), p.put(v, offset, []byte(text))
	}
	if !t.is("{") {
		if len(dims) != 0 {
			return 0, errAt(t.pos, "'{' is expected, not %v", t)
		}
		return 0, p.initialValue(v, offset)
	}
	p.skip()
	if len(dims) == 0 {
		return 0, errAt(t.pos, "too many braces in the initial value of %s", v.name)
	}
	stride := uint64(v.elem.bytes())
	for _, d := range dims[1:] {
		stride *= d
	}
	var n uint64
	if end, err := p.accept("}"); err != nil || end {
		return 0, err
	}
	// Without inner braces the values of inner dimensions follow one another.
	flat := dims[1:]
	if t, err := p.peek(0); err == nil && !t.is("{") && t.kind != tokString {
		flat = nil
		stride = uint64(v.elem.bytes())
	}
	for {
		if offset+stride > v.global.Size || n*stride >= v.global.Size {
			return 0, errAt(t.pos, "too many initial values for %s", v.name)
		}
		if _, err := p.initialiser(v, flat, offset); err != nil {
			return 0, err
		}
		n++
		offset += stride
		if more, err := p.accept(","); err != nil {
			return 0, err
		} else if !more {
			break
		}
	}
	if flat == nil && len(dims) > 1 {
		inner := uint64(1)
		for _, d := range dims[1:] {
			inner *= d
		}
		n = (n + inner - 1) / inner
	}
	if n > dims[0] {
		return 0, errAt(t.pos, "too many initial values for %s", v.name)
	}
	return n, p.expect("}")
}

// put stores initial bytes. Values are given in order, but braces may leave large gaps before the next, so there is a
// bound.
func (p *parser) put(v *variable, offset uint64, b []byte) error {
	g := v.global
	if end := offset + uint64(len(b)); end > uint64(len(g.Init)) {
		more := end - uint64(len(g.Init))
		if more > maxInit || p.initBytes+more > maxInit {
			return errAt(v.pos, "the initial values up to %s are larger than %d bytes", v.name, maxInit)
		}
		p.initBytes += more
		g.Init = append(g.Init, make([]byte, more)...)
	}
	copy(g.Init[offset:], b)
	return nil
}

const maxInit = 256 << 20 // of all variables of a text

func (p *parser) initialValue(v *variable, offset uint64) error {
	t, err := p.next()
	if err != nil {
		return err
	}
	neg := false
	for t.is("-") || t.is("+") {
		neg = neg != t.is("-")
		if t, err = p.next(); err != nil {
			return err
		}
	}
	var raw [8]byte
	size := v.elem.bytes()
	switch t.kind {
	case tokIdent:
		return p.initialAddress(v, offset, t)
	case tokInt:
		val := t.val
		if neg {
			val = -val
		}
		switch v.elem {
		case tF32:
			val = uint64(math.Float32bits(float32(int64(val))))
		case tF64:
			val = math.Float64bits(float64(int64(val)))
		}
		binary.LittleEndian.PutUint64(raw[:], val)
	case tokFloat32, tokFloat64:
		f := math.Float64frombits(t.val)
		if t.kind == tokFloat32 {
			f = float64(math.Float32frombits(uint32(t.val)))
		}
		if neg {
			f = -f
		}
		switch {
		case v.elem == tF64 || v.elem == tB64 && t.kind == tokFloat64:
			binary.LittleEndian.PutUint64(raw[:], math.Float64bits(f))
		case v.elem == tF32 || v.elem == tB32 && t.kind == tokFloat32:
			binary.LittleEndian.PutUint32(raw[:], math.Float32bits(float32(f)))
		default:
			return errAt(t.pos, "a floating-point value in a %v variable", v.elem)
		}
	default:
		return errAt(t.pos, "an initial value is expected, not %v", t)
	}
	return p.put(v, offset, raw[:size])
}

// initialAddress reads name, name+n or generic(name)+n, whose address is the value.
func (p *parser) initialAddress(v *variable, offset uint64, t token) error {
	var err error
	if t.text == "generic" {
		if err = p.expect("("); err != nil {
			return err
		}
		if t, err = p.ident(); err != nil {
			return err
		}
		if err = p.expect(")"); err != nil {
			return err
		}
	}
	var addend uint64
	if plus, err := p.accept("+"); err != nil {
		return err
	} else if plus {
		if addend, err = p.integer(); err != nil {
			return err
		}
	} else if minus, err := p.accept("-"); err != nil {
		return err
	} else if minus {
		if addend, err = p.integer(); err != nil {
			return err
		}
		addend = -addend
	}
	if v.elem.bytes() < 8 {
		return unsupportedAt(t.pos, "an address in a %v variable is not supported", v.elem)
	}
	if err := p.put(v, offset, make([]byte, v.elem.bytes())); err != nil {
		return err
	}
	p.inits = append(p.inits, pendingInit{g: v.global, offset: offset, size: v.elem.bytes(), name: t,
		addend: int64(addend)})
	return nil
}

func unquote(t token) (string, error) {
	var b strings.Builder
	s := t.text
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '0':
			b.WriteByte(0)
		case '\\', '"':
			b.WriteByte(s[i])
		default:
			return "", unsupportedAt(t.pos, "escape \\%c in a string is not supported", s[i])
		}
	}
	return b.String(), nil
}
