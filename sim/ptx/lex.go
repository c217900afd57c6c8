package ptx

import (
	"math"
	"strconv"
	"strings"
)

type pos struct{ line, col int }

type tokenKind uint8

const (
	tokEOF   tokenKind = iota
	tokIdent           // name, %name, $name, _
	tokDot             // .name or .name::name
	tokInt
	tokFloat32 // 0f…: val holds the bits
	tokFloat64 // 0d… or decimal: val holds the bits
	tokString
	tokPunct
)

type token struct {
	kind tokenKind
	text string
	val  uint64
	pos  pos
}

func (t token) is(s string) bool {
	return (t.kind == tokPunct || t.kind == tokDot || t.kind == tokIdent) && t.text == s
}

func (t token) String() string {
	if t.kind == tokEOF {
		return "the end of the text"
	}
	return strconv.Quote(t.text)
}

type lexer struct {
	src  string
	off  int
	line int
	bol  int // offset where the line begins
}

func (l *lexer) here() pos { return pos{l.line, l.off - l.bol + 1} }

func identStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c == '%' || c >= 0x80
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func identPart(c byte) bool { return identStart(c) && c != '%' || digit(c) }

func (l *lexer) peekByte(n int) byte {
	if l.off+n < len(l.src) {
		return l.src[l.off+n]
	}
	return 0
}

func (l *lexer) skipSpace() error {
	for l.off < len(l.src) {
		c := l.src[l.off]
		switch {
		case c == '\n':
			l.off++
			l.line++
			l.bol = l.off
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			l.off++
		case c == '/' && l.peekByte(1) == '/':
			end := strings.IndexByte(l.src[l.off:], '\n')
			if end < 0 {
				l.off = len(l.src)
			} else {
				l.off += end
			}
		case c == '/' && l.peekByte(1) == '*':
			p := l.here()
			end := strings.Index(l.src[l.off+2:], "*/")
			if end < 0 {
				return errAt(p, "comment is not closed")
			}
			for i := l.off; i < l.off+2+end; i++ {
				if l.src[i] == '\n' {
					l.line++
					l.bol = i + 1
				}
			}
			l.off += end + 4
		default:
			return nil
		}
	}
	return nil
}

func (l *lexer) next() (token, error) {
	if err := l.skipSpace(); err != nil {
		return token{}, err
	}
	p := l.here()
	if l.off >= len(l.src) {
		return token{kind: tokEOF, pos: p}, nil
	}
	c := l.src[l.off]
	start := l.off
	switch {
	case identStart(c):
		l.off++
		for identPart(l.peekByte(0)) {
			l.off++
		}
		return token{kind: tokIdent, text: l.src[start:l.off], pos: p}, nil
	case c == '.' && identPart(l.peekByte(1)):
		l.off++
		for identPart(l.peekByte(0)) || l.peekByte(0) == ':' && l.peekByte(1) == ':' && identPart(l.peekByte(2)) {
			if l.src[l.off] == ':' {
				l.off++
			}
			l.off++
		}
		return token{kind: tokDot, text: l.src[start:l.off], pos: p}, nil
	case digit(c):
		return l.number(p)
	case c == '"':
		end := start + 1
		for end < len(l.src) && l.src[end] != '"' && l.src[end] != '\n' {
			if l.src[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(l.src) || l.src[end] != '"' {
			return token{}, errAt(p, "string is not closed")
		}
		l.off = end + 1
		return token{kind: tokString, text: l.src[start+1 : end], pos: p}, nil
	case strings.IndexByte("{}()[],;:=+-!|<>@*/~&^.", c) >= 0:
		l.off++
		return token{kind: tokPunct, text: l.src[start:l.off], pos: p}, nil
	}
	return token{}, errAt(p, "unexpected character %q", c)
}

func (l *lexer) number(p pos) (token, error) {
	start := l.off
	hexFloat := func(n int, kind tokenKind) (token, error) {
		if l.off+2+n > len(l.src) {
			return token{}, errAt(p, "number is cut short")
		}
		text := l.src[l.off : l.off+2+n]
		v, err := strconv.ParseUint(text[2:], 16, 64)
		if err != nil {
			return token{}, errAt(p, "%q is no floating-point number: %d hexadecimal digits are needed", text, n)
		}
		l.off += 2 + n
		return token{kind: kind, text: text, val: v, pos: p}, nil
	}
	if l.src[l.off] == '0' {
		switch l.peekByte(1) {
		case 'f', 'F':
			return hexFloat(8, tokFloat32)
		case 'd', 'D':
			return hexFloat(16, tokFloat64)
		}
	}
	hex := l.src[l.off] == '0' && (l.peekByte(1) == 'x' || l.peekByte(1) == 'X')
	float := false
	for {
		c := l.peekByte(0)
		switch {
		case digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			if !hex && (c == 'e' || c == 'E') {
				float = true
				if n := l.peekByte(1); n == '+' || n == '-' {
					l.off++
				}
			}
			l.off++
			continue
		case c == '.' && !hex && !float && digit(l.peekByte(1)):
			float = true
			l.off++
			continue
		}
		break
	}
	text := l.src[start:l.off]
	if float {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return token{}, errAt(p, "%q is no number", text)
		}
		return token{kind: tokFloat64, text: text, val: math.Float64bits(v), pos: p}, nil
	}
	digits := strings.TrimRight(text, "uU")
	v, err := strconv.ParseUint(digits, 0, 64)
	if err != nil || strings.Contains(digits, "o") || strings.Contains(digits, "_") {
		return token{}, errAt(p, "%q is no number of 64 bits", text)
	}
	return token{kind: tokInt, text: text, val: v, pos: p}, nil
}
