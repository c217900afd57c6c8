package ptx

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

const (
	maxDepth     = 200       // of nested braces
	maxRegisters = 1 << 20   // of one range
	maxVariable  = 1 << 40   // bytes
	maxParams    = 32764     // bytes of kernel parameters
	maxLocal     = 512 << 10 // bytes a thread
	maxShared    = 1 << 20

	newestVersion = 9.0 // of PTX
)

// Parse reads a PTX text and checks it; of one of more than wholeText bytes the bodies of functions are left for
// [Entry.Load]. A trailing NUL, as images in memory have it, is accepted.
func Parse(src []byte) (*Module, error) { return parse(src, len(src) > wholeText) }

// parse leaves the bodies of functions for their first use if late.
func parse(src []byte, late bool) (*Module, error) {
	if i := bytes.IndexByte(src, 0); i >= 0 {
		src = src[:i]
	}
	p := &parser{lex: lexer{src: string(src), line: 1}, mod: &Module{AddressSize: 32, late: late}}
	p.scope = newScope(nil)
	if err := p.module(); err != nil {
		return nil, err
	}
	if err := p.mod.link(p); err != nil {
		return nil, err
	}
	return p.mod, nil
}

type parser struct {
	lex   lexer
	ahead [2]token // the next ones, of which there are known
	known int
	scope *scope
	fn    *function
	mod   *Module
	depth int
	top   *scope
	inits []pendingInit
	alias [][2]token

	initBytes uint64 // of all initial values

	// where statements' modifiers and operands lie, many behind one another
	mods []string
	args []operand
}

// pendingInit is an initialiser that names a symbol, resolved when all are known.
type pendingInit struct {
	g      *Global
	offset uint64
	size   int
	name   token
	addend int64
}

// peek looks at the next token, or (1) at the one after it.
func (p *parser) peek(n int) (token, error) {
	for p.known <= n {
		t, err := p.lex.next()
		if err != nil {
			return token{}, err
		}
		p.ahead[p.known] = t
		p.known++
	}
	return p.ahead[n], nil
}

func (p *parser) next() (token, error) {
	if p.known == 0 {
		return p.lex.next()
	}
	t := p.ahead[0]
	p.ahead[0] = p.ahead[1]
	p.known--
	return t, nil
}

// before says that a token of this kind comes next; what is wrong with it, whoever takes it finds.
func (p *parser) before(kind tokenKind) bool {
	t, err := p.peek(0)
	return err == nil && t.kind == kind
}

// skip takes a token that was looked at before, so there is no error.
func (p *parser) skip() { _, _ = p.next() }

// accept takes the next token if it is s.
func (p *parser) accept(s string) (bool, error) {
	t, err := p.peek(0)
	if err != nil || !t.is(s) {
		return false, err
	}
	_, err = p.next()
	return true, err
}

func (p *parser) expect(s string) error {
	t, err := p.next()
	if err != nil {
		return err
	}
	if !t.is(s) {
		return errAt(t.pos, "%q is expected, not %v", s, t)
	}
	return nil
}

func (p *parser) ident() (token, error) {
	t, err := p.next()
	if err == nil && t.kind != tokIdent {
		err = errAt(t.pos, "a name is expected, not %v", t)
	}
	return t, err
}

func (p *parser) integer() (uint64, error) {
	neg, err := p.accept("-")
	if err != nil {
		return 0, err
	}
	t, err := p.next()
	if err != nil {
		return 0, err
	}
	if t.kind != tokInt {
		return 0, errAt(t.pos, "a number is expected, not %v", t)
	}
	if neg {
		return -t.val, nil
	}
	return t.val, nil
}

// integers reads n or more numbers with commas between them.
func (p *parser) integers() ([]uint64, error) {
	var list []uint64
	for {
		v, err := p.integer()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if more, err := p.accept(","); err != nil || !more {
			return list, err
		}
		if len(list) == 3 {
			t, _ := p.peek(0)
			return nil, errAt(t.pos, "more than three dimensions")
		}
	}
}

func (p *parser) declare(t token, sym *symbol) error {
	if p.scope.names[t.text] != nil {
		return errAt(t.pos, "%s is declared twice", t.text)
	}
	p.scope.names[t.text] = sym
	return nil
}

func (p *parser) module() error {
	p.top = p.scope
	for first := true; ; first = false {
		t, err := p.peek(0)
		if err != nil {
			return err
		}
		if t.kind == tokEOF {
			if p.mod.Version == "" {
				return errAt(t.pos, "the text has no .version")
			}
			return nil
		}
		if first && !t.is(".version") {
			return errAt(t.pos, "a PTX text begins with .version, not %v", t)
		}
		if err := p.moduleItem(t); err != nil {
			return err
		}
	}
}

func (p *parser) moduleItem(t token) error {
	switch t.text {
	case ".version":
		p.skip()
		v, err := p.next()
		if err != nil {
			return err
		}
		if v.kind != tokFloat64 {
			return errAt(v.pos, "a version like 9.0 is expected, not %v", v)
		}
		p.mod.Version = v.text
		if n, err := strconv.ParseFloat(v.text, 64); err != nil || n > newestVersion {
			return &Error{Line: v.pos.line, Col: v.pos.col,
				Msg: fmt.Sprintf("version %s is newer than %.1f", v.text, newestVersion), Version: true}
		}
		return nil
	case ".target":
		p.skip()
		for {
			name, err := p.ident()
			if err != nil {
				return err
			}
			if strings.HasPrefix(name.text, "sm_") {
				p.mod.Target = name.text
			}
			if more, err := p.accept(","); err != nil || !more {
				return err
			}
		}
	case ".address_size":
		p.skip()
		n, err := p.integer()
		if err != nil {
			return err
		}
		if n != 64 {
			return unsupportedAt(t.pos, "address size %d is not supported, only 64", n)
		}
		p.mod.AddressSize = int(n)
		return nil
	case ".alias":
		p.skip()
		a, err := p.ident()
		if err != nil {
			return err
		}
		if err := p.expect(","); err != nil {
			return err
		}
		b, err := p.ident()
		if err != nil {
			return err
		}
		p.alias = append(p.alias, [2]token{a, b})
		return p.expect(";")
	case ";":
		_, err := p.next()
		return err
	}
	if done, err := p.debugDirective(t); done || err != nil {
		return err
	}
	var link linkage
	for {
		t, err := p.next()
		if err != nil {
			return err
		}
		switch t.text {
		case ".extern":
			link.extern = true
		case ".visible", ".weak", ".common":
			link.visible = true
		case ".entry":
			return p.entry(link)
		case ".func":
			return p.function(link)
		case ".global", ".const", ".shared":
			return p.variables(t, link)
		case ".reg", ".local", ".param":
			return unsupportedAt(t.pos, "%s at module scope is not supported", t.text)
		default:
			if t.kind == tokDot {
				return unsupportedAt(t.pos, "directive %s is not known", t.text)
			}
			return errAt(t.pos, "a directive is expected, not %v", t)
		}
	}
}

type linkage struct{ extern, visible bool }

// debugDirective skips what only debuggers and optimisers read.
func (p *parser) debugDirective(t token) (bool, error) {
	switch t.text {
	case ".pragma":
		p.skip()
		for {
			s, err := p.next()
			if err != nil {
				return true, err
			}
			if s.kind != tokString {
				return true, errAt(s.pos, "a string is expected, not %v", s)
			}
			if more, err := p.accept(","); err != nil {
				return true, err
			} else if !more {
				return true, p.expect(";")
			}
		}
	case ".file":
		p.skip()
		if _, err := p.integer(); err != nil {
			return true, err
		}
		if s, err := p.next(); err != nil || s.kind != tokString {
			return true, orErr(err, errAt(s.pos, "a file name is expected, not %v", s))
		}
		for {
			if more, err := p.accept(","); err != nil || !more {
				return true, err
			}
			if _, err := p.integer(); err != nil {
				return true, err
			}
		}
	case ".loc":
		p.skip()
		for i := 0; ; i++ {
			n, err := p.peek(0)
			if err != nil {
				return true, err
			}
			if n.kind == tokInt {
				p.skip()
				continue
			}
			if !n.is(",") {
				return true, nil
			}
			p.skip()
			name, err := p.ident() // function_name or inlined_at
			if err != nil {
				return true, err
			}
			if name.text == "function_name" {
				if _, err := p.ident(); err != nil {
					return true, err
				}
				if plus, err := p.accept("+"); err != nil {
					return true, err
				} else if plus {
					if _, err := p.integer(); err != nil {
						return true, err
					}
				}
			}
		}
	case ".section":
		p.skip()
		if _, err := p.next(); err != nil {
			return true, err
		}
		if err := p.expect("{"); err != nil {
			return true, err
		}
		for depth := 1; depth > 0; {
			s, err := p.next()
			if err != nil {
				return true, err
			}
			switch {
			case s.kind == tokEOF:
				return true, errAt(t.pos, ".section is not closed")
			case s.is("{"):
				depth++
			case s.is("}"):
				depth--
			}
		}
		return true, nil
	}
	return false, nil
}

func orErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func alignUp(n, a uint64) uint64 { return (n + a - 1) &^ (a - 1) }
