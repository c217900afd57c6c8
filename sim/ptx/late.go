package ptx

import "strings"

// wholeText is the longest text that is checked whole when it is loaded: what programs write or compile themselves.
// Of the texts of PyTorch and cuBLAS, of 600 KB each, nobody launches a hundredth.
const wholeText = 128 << 10

// leaveOut skips a body, behind its opening brace, that is read when the function is first used. It is not skipped
// where it declares variables of the module, or its end is not found: then the parser has the word.
func (p *parser) leaveOut() bool {
	at := p.lex
	if p.known != 0 || !p.lex.skipBody() {
		p.lex = at
		return false
	}
	p.fn.body, p.fn.scope = &at, p.scope
	return true
}

// skipBody goes behind the brace that closes what was opened.
func (l *lexer) skipBody() bool {
	for depth := 1; l.off < len(l.src); {
		c := l.src[l.off]
		l.off++
		switch c {
		case '\n':
			l.line++
			l.bol = l.off
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return true
			}
		case '"':
			end := strings.IndexAny(l.src[l.off:], "\"\\\n")
			if end < 0 || l.src[l.off+end] != '"' {
				return false
			}
			l.off += end + 1
		case '/':
			l.off--
			before := l.off
			if err := l.skipSpace(); err != nil {
				return false
			}
			if l.off == before {
				l.off++
			}
		case '.':
			if l.declaresGlobal() {
				return false
			}
		}
	}
	return false
}

// declaresGlobal says, behind a dot, that a declaration begins which concerns the whole module. In an instruction's
// name a letter stands before the dot.
func (l *lexer) declaresGlobal() bool {
	rest := l.src[l.off:]
	if !strings.HasPrefix(rest, "global") && !strings.HasPrefix(rest, "const") && !strings.HasPrefix(rest, "extern") {
		return false
	}
	return l.off < 2 || !identPart(l.src[l.off-2])
}

// late reads and compiles a function that was left out.
func (fn *function) late(m *Module) error {
	if fn.body == nil || fn.failed != nil {
		return fn.failed
	}
	globals := len(m.Globals)
	p := &parser{lex: *fn.body, mod: m, scope: fn.scope, fn: fn}
	fn.failed = p.block()
	if fn.failed == nil && len(m.Globals) != globals {
		fn.failed = unsupportedAt(fn.pos, "%s declares a variable of the module", fn.name)
	}
	if fn.failed == nil {
		fn.params = max(fn.params, fn.maxParams)
		fn.failed = compile(fn, &m.lazy.budget)
	}
	if fn.failed == nil {
		fn.body, fn.scope = nil, nil
	}
	return fn.failed
}
