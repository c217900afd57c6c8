package ptx

import "strings"

// functionBody reads the braces of a function.
func (p *parser) functionBody() error {
	if err := p.expect("{"); err != nil {
		return err
	}
	if p.mod.late && p.leaveOut() {
		return nil
	}
	return p.block()
}

// block reads statements up to the closing brace.
func (p *parser) block() error {
	p.depth++
	defer func() { p.depth-- }()
	for {
		t, err := p.peek(0)
		if err != nil {
			return err
		}
		if p.depth > maxDepth {
			return errAt(t.pos, "braces are nested too deep")
		}
		switch {
		case t.kind == tokEOF:
			return errAt(t.pos, "the text ends inside %s", p.fn.name)
		case t.is("}"):
			_, err := p.next()
			return err
		case t.is("{"):
			p.skip()
			outer := p.scope
			p.scope = newScope(outer)
			params := p.fn.params
			err := p.block()
			p.scope = outer
			p.fn.maxParams, p.fn.params = max(p.fn.maxParams, p.fn.params), params
			if err != nil {
				return err
			}
		case t.is(";"):
			p.skip()
		case t.kind == tokDot:
			if err := p.bodyDirective(t); err != nil {
				return err
			}
		case t.is("@") || t.kind == tokIdent:
			if colon, err := p.peek(1); err != nil {
				return err
			} else if t.kind == tokIdent && colon.is(":") {
				p.skip()
				p.skip()
				if err := p.label(t); err != nil {
					return err
				}
				continue
			}
			if err := p.statement(); err != nil {
				return err
			}
		default:
			return errAt(t.pos, "an instruction is expected, not %v", t)
		}
	}
}

func (p *parser) bodyDirective(t token) error {
	if done, err := p.debugDirective(t); done || err != nil {
		return err
	}
	p.skip()
	switch t.text {
	case ".reg", ".local", ".shared", ".param", ".global", ".const":
		return p.variables(t, linkage{})
	case ".extern":
		space, err := p.next()
		if err != nil {
			return err
		}
		if space.is(".shared") || space.is(".global") || space.is(".const") {
			return p.variables(space, linkage{extern: true})
		}
		return errAt(space.pos, "a variable is expected, not %v", space)
	}
	return unsupportedAt(t.pos, "directive %s is not known inside a function", t.text)
}

// label declares a label, or the list or prototype that stands behind one.
func (p *parser) label(name token) error {
	t, err := p.peek(0)
	if err != nil {
		return err
	}
	switch t.text {
	case ".branchtargets", ".calltargets":
		p.skip()
		sym := &symbol{kind: symTargets}
		for {
			l, err := p.ident()
			if err != nil {
				return err
			}
			sym.targets = append(sym.targets, l.text)
			if more, err := p.accept(","); err != nil {
				return err
			} else if !more {
				break
			}
		}
		if err := p.expect(";"); err != nil {
			return err
		}
		return p.declare(name, sym)
	case ".callprototype":
		p.skip()
		sym := &symbol{kind: symPrototype, proto: &signature{}}
		// The names in a prototype are of no use and may repeat.
		outer := p.scope
		defer func() { p.scope = outer }()
		for i, list := range []*[]*variable{&sym.proto.rets, &sym.proto.params} {
			p.scope = newScope(outer)
			if open, err := p.accept("("); err != nil {
				return err
			} else if open {
				if *list, err = p.formals(); err != nil {
					return err
				}
			}
			if i == 0 {
				if _, err := p.ident(); err != nil {
					return err
				}
			}
		}
		p.scope = outer
		if err := p.performance(&Entry{}); err != nil {
			return err
		}
		if err := p.expect(";"); err != nil {
			return err
		}
		return p.declare(name, sym)
	}
	return p.declare(name, &symbol{kind: symLabel, label: len(p.fn.stmts)})
}

func (p *parser) statement() error {
	s := stmt{scope: p.scope}
	t, err := p.next()
	if err != nil {
		return err
	}
	if t.is("@") {
		if s.guardNot, err = p.accept("!"); err != nil {
			return err
		}
		g, err := p.ident()
		if err != nil {
			return err
		}
		s.guard = g.text
		if t, err = p.ident(); err != nil {
			return err
		}
	}
	s.pos, s.op = t.pos, t.text
	p.mods, p.args = roomFor(p.mods, 8), roomFor(p.args, 4)
	firstMod, firstArg := len(p.mods), len(p.args)
	for {
		m, err := p.peek(0)
		if err != nil {
			return err
		}
		if m.kind != tokDot {
			break
		}
		p.skip()
		p.mods = append(p.mods, m.text)
	}
	s.mods = p.mods[firstMod:len(p.mods):len(p.mods)]
	for {
		t, err := p.peek(0)
		if err != nil {
			return err
		}
		if t.is(";") {
			p.skip()
			break
		}
		if len(p.args) > firstArg {
			if err := p.expect(","); err != nil {
				return err
			}
		}
		arg, err := p.operand(0)
		if err != nil {
			return err
		}
		p.args = append(p.args, arg)
		if len(p.args)-firstArg > 64 {
			return errAt(t.pos, "too many operands")
		}
	}
	s.args = p.args[firstArg:len(p.args):len(p.args)]
	p.fn.stmts = append(p.fn.stmts, s)
	return nil
}

// roomFor gives a list with room for n more; what lies before it is somebody's.
func roomFor[T any](list []T, n int) []T {
	if cap(list)-len(list) < n {
		return make([]T, 0, 256)
	}
	return list
}

func (p *parser) operand(depth int) (operand, error) {
	t, err := p.next()
	if err != nil {
		return operand{}, err
	}
	o := operand{pos: t.pos}
	switch {
	case depth > 2:
		return o, errAt(t.pos, "operands are nested too deep")
	case t.is("["):
		return p.address(o, depth)
	case t.is("{"), t.is("("):
		o.kind = oVec
		end := "}"
		if t.is("(") {
			o.kind, end = oParen, ")"
		}
		if done, err := p.accept(end); err != nil || done {
			return o, err
		}
		for {
			e, err := p.operand(depth + 1)
			if err != nil {
				return o, err
			}
			o.list = append(o.list, e)
			if more, err := p.accept(","); err != nil {
				return o, err
			} else if !more {
				break
			}
			if len(o.list) > 256 {
				return o, errAt(t.pos, "too many operands")
			}
		}
		return o, p.expect(end)
	case t.is("!"):
		name, err := p.ident()
		if err != nil {
			return o, err
		}
		o.kind, o.name, o.neg = oName, name.text, true
		return o, nil
	case t.is("-") && p.before(tokIdent):
		e, err := p.operand(depth + 1)
		o.kind, o.list = oMinus, []operand{e}
		return o, err
	case t.is("-"), t.is("+"), t.is("~"), t.kind == tokInt, t.kind == tokFloat32, t.kind == tokFloat64:
		return p.constant(t)
	case t.kind == tokIdent:
		o.kind, o.name = oName, t.text
		if t.text == "_" {
			o.kind = oSink
		}
		if n, err := p.peek(0); err != nil {
			return o, err
		} else if n.kind == tokDot {
			p.skip()
			o.comp = n.text
			if sym := p.scope.lookup(o.name); sym != nil && sym.kind == symVector {
				o.name, o.comp = o.name+colours.Replace(o.comp), ""
				if p.scope.lookup(o.name) == nil {
					return o, errAt(t.pos, "%s has no component %s", t.text, n.text)
				}
			}
		} else if n.is("+") || n.is("-") {
			if o.val, err = p.offset(); err != nil {
				return o, err
			}
		} else if n.is("[") {
			return p.element(o)
		}
		if or, err := p.accept("|"); err != nil {
			return o, err
		} else if or {
			q, err := p.operand(depth + 1)
			if err != nil {
				return o, err
			}
			o.pair = &q
		}
		if sym := p.scope.lookup(o.name); sym != nil && sym.kind == symVector && o.val == 0 && o.pair == nil {
			v := operand{kind: oVec, pos: t.pos}
			for _, part := range vectorParts[:sym.vector] {
				v.list = append(v.list, operand{kind: oName, name: o.name + part, pos: t.pos})
			}
			return v, nil
		}
		return o, nil
	}
	return o, errAt(t.pos, "an operand is expected, not %v", t)
}

// element reads the brackets behind an array's name.
func (p *parser) element(o operand) (operand, error) {
	p.skip()
	o.kind = oElement
	if t, err := p.peek(0); err == nil && t.kind == tokIdent {
		return o, unsupportedAt(t.pos, "%s[%s]: an index that is no number is not supported", o.name, t.text)
	}
	var err error
	if o.val, err = p.integer(); err != nil {
		return o, err
	}
	return o, p.expect("]")
}

// colours gives a vector's components the names by which they are known here.
var colours = strings.NewReplacer(".r", ".x", ".g", ".y", ".b", ".z", ".a", ".w")

// offset reads the +n behind a name, which compilers also write as +-n.
func (p *parser) offset() (uint64, error) {
	t, err := p.next()
	if err != nil {
		return 0, err
	}
	v, err := p.integer()
	if t.is("-") {
		v = -v
	}
	return v, err
}

func (p *parser) constant(t token) (operand, error) {
	o := operand{pos: t.pos}
	neg, not := false, false
	for t.is("-") || t.is("+") || t.is("~") {
		neg = neg != t.is("-")
		not = not != t.is("~")
		var err error
		if t, err = p.next(); err != nil {
			return o, err
		}
	}
	o.val = t.val
	switch t.kind {
	case tokInt:
		o.kind = oInt
		if not {
			o.val = ^o.val
		}
		if neg {
			o.val = -o.val
		}
	case tokFloat32:
		o.kind = oFloat32
		if neg {
			o.val ^= 1 << 31
		}
	case tokFloat64:
		o.kind = oFloat64
		if neg {
			o.val ^= 1 << 63
		}
	default:
		return o, errAt(t.pos, "a number is expected, not %v", t)
	}
	return o, nil
}

// address reads what stands in brackets; texture instructions have coordinates behind the object.
func (p *parser) address(o operand, depth int) (operand, error) {
	o.kind = oAddr
	t, err := p.next()
	if err != nil {
		return o, err
	}
	switch {
	case t.kind == tokIdent:
		o.name = t.text
		if n, err := p.peek(0); err != nil {
			return o, err
		} else if n.is("+") || n.is("-") {
			if o.val, err = p.offset(); err != nil {
				return o, err
			}
		}
	case t.kind == tokInt:
		o.val = t.val
	default:
		return o, errAt(t.pos, "an address is expected, not %v", t)
	}
	for {
		if comma, err := p.accept(","); err != nil {
			return o, err
		} else if !comma {
			return o, p.expect("]")
		}
		part, err := p.operand(depth + 1)
		if err != nil {
			return o, err
		}
		if o.list = append(o.list, part); len(o.list) > 8 {
			return o, errAt(t.pos, "too many parts of an address")
		}
	}
}
