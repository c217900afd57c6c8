package ptx

func (p *parser) entry(link linkage) error {
	name, err := p.ident()
	if err != nil {
		return err
	}
	fn := &function{name: name.text, entry: true, pos: name.pos}
	e := &Entry{Name: name.text, fn: fn, module: p.mod}
	outer := p.scope
	p.scope = newScope(outer)
	p.fn = fn
	defer func() { p.scope, p.fn = outer, nil }()
	if open, err := p.accept("("); err != nil {
		return err
	} else if open {
		if fn.sig.params, err = p.formals(); err != nil {
			return err
		}
	}
	var off uint64
	for _, v := range fn.sig.params {
		if v.space != vsParam {
			return errAt(v.pos, "parameter %s of a kernel must be in .param", v.name)
		}
		off = alignUp(off, v.align)
		v.offset, v.kernelParam = off, true
		e.Params = append(e.Params, Param{Name: v.name, Offset: int(off), Size: int(v.size), Align: int(v.align)})
		off += v.size
		if off > maxParams {
			return errAt(v.pos, "the parameters of %s are larger than %d bytes", fn.name, maxParams)
		}
	}
	e.ParamSize = int(off)
	if err := p.performance(e); err != nil {
		return err
	}
	if semi, err := p.accept(";"); err != nil || semi {
		return err // a declaration only
	}
	if outer.names[name.text] != nil {
		return errAt(name.pos, "%s is declared twice", name.text)
	}
	outer.names[name.text] = &symbol{kind: symFunction, fn: fn}
	if err := p.functionBody(); err != nil {
		return err
	}
	fn.has = true
	fn.index = len(p.mod.funcs)
	p.mod.funcs = append(p.mod.funcs, fn)
	p.mod.Entries = append(p.mod.Entries, e)
	return nil
}

// performance reads the directives between a function's header and its body.
func (p *parser) performance(e *Entry) error {
	for {
		t, err := p.peek(0)
		if err != nil {
			return err
		}
		var dims *[3]uint32
		switch t.text {
		case ".maxntid":
			dims = &e.MaxThreads
		case ".reqntid":
			dims = &e.ReqThreads
		case ".reqnctapercluster":
			dims = &e.ClusterDim
		case ".minnctapersm", ".maxnctapersm", ".maxnreg", ".maxclusterrank", ".abi_preserve", ".abi_preserve_control":
			p.skip()
			n, err := p.integer()
			if err != nil {
				return err
			}
			if t.text == ".minnctapersm" {
				e.MinBlocks = int(uint16(n))
			}
			if t.text == ".maxnreg" {
				e.MaxRegisters = int(uint16(n))
			}
			continue
		case ".explicitcluster", ".noreturn", ".blocksareclusters":
			p.skip()
			continue
		case ".pragma":
			if _, err := p.debugDirective(t); err != nil {
				return err
			}
			continue
		default:
			return nil
		}
		p.skip()
		list, err := p.integers()
		if err != nil {
			return err
		}
		*dims = [3]uint32{1, 1, 1}
		for i, v := range list {
			if v == 0 || v > 1<<31-1 {
				return errAt(t.pos, "%s %d is out of range", t.text, v)
			}
			dims[i] = uint32(v)
		}
	}
}

func (p *parser) function(link linkage) error {
	if attr, err := p.accept(".attribute"); err != nil {
		return err
	} else if attr {
		if err := p.skipParens(); err != nil {
			return err
		}
	}
	fn := &function{}
	outer := p.scope
	p.scope = newScope(outer)
	p.fn = fn
	defer func() { p.scope, p.fn = outer, nil }()
	if open, err := p.accept("("); err != nil {
		return err
	} else if open {
		if fn.sig.rets, err = p.formals(); err != nil {
			return err
		}
	}
	name, err := p.ident()
	if err != nil {
		return err
	}
	fn.name, fn.pos = name.text, name.pos
	if open, err := p.accept("("); err != nil {
		return err
	} else if open {
		if fn.sig.params, err = p.formals(); err != nil {
			return err
		}
	}
	for _, list := range [][]*variable{fn.sig.rets, fn.sig.params} {
		for _, v := range list {
			if v.space == vsParam {
				fn.addParam(v)
			}
		}
	}
	if err := p.performance(&Entry{}); err != nil {
		return err
	}
	prev := outer.names[name.text]
	if prev != nil && prev.kind != symFunction {
		return errAt(name.pos, "%s is declared twice", name.text)
	}
	if semi, err := p.accept(";"); err != nil {
		return err
	} else if semi {
		if prev == nil {
			fn.index = -1
			outer.names[name.text] = &symbol{kind: symFunction, fn: fn}
		}
		return nil
	}
	if prev != nil {
		if prev.fn.has || prev.fn.entry {
			return errAt(name.pos, "%s is defined twice", name.text)
		}
		// Calls that were parsed hold names only, so the definition can take the declaration's place.
		prev.fn = fn
	} else {
		outer.names[name.text] = &symbol{kind: symFunction, fn: fn}
	}
	fn.has = true
	fn.index = len(p.mod.funcs)
	p.mod.funcs = append(p.mod.funcs, fn)
	return p.functionBody()
}

func (fn *function) addParam(v *variable) {
	fn.params = alignUp(fn.params, v.align)
	v.offset = fn.params
	fn.params += v.size
}

func (p *parser) skipParens() error {
	if err := p.expect("("); err != nil {
		return err
	}
	for depth := 1; depth > 0; {
		t, err := p.next()
		if err != nil {
			return err
		}
		switch {
		case t.kind == tokEOF:
			return errAt(t.pos, "the text ends between parentheses")
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		}
	}
	return nil
}

// formals reads parameters behind an opening parenthesis.
func (p *parser) formals() ([]*variable, error) {
	var list []*variable
	if end, err := p.accept(")"); err != nil || end {
		return nil, err
	}
	for {
		t, err := p.next()
		if err != nil {
			return nil, err
		}
		if t.text != ".param" && t.text != ".reg" {
			return nil, errAt(t.pos, ".param or .reg is expected, not %v", t)
		}
		v, err := p.declarator(t)
		if err != nil {
			return nil, err
		}
		name, err := p.ident()
		if err != nil {
			return nil, err
		}
		v.name, v.pos = name.text, name.pos
		if err := p.dimensions(v, nil); err != nil {
			return nil, err
		}
		if v.size > maxParams {
			return nil, errAt(name.pos, "parameter %s is larger than %d bytes", v.name, maxParams)
		}
		if name.text != "_" {
			sym := &symbol{kind: symVariable, v: v}
			if t.text == ".reg" {
				sym = &symbol{kind: symRegister, reg: v.elem}
				v.reg = sym
			}
			if err := p.declare(name, sym); err != nil {
				return nil, err
			}
		}
		list = append(list, v)
		if more, err := p.accept(","); err != nil {
			return nil, err
		} else if !more {
			return list, p.expect(")")
		}
	}
}
