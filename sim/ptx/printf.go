package ptx

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	maxString = 1 << 16 // bytes of a string that a kernel prints
	maxWidth  = 1 << 12
)

func uitoa(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

// cstring reads a string that ends with NUL.
func (w *warp) cstring(l int, addr uint64) (string, bool) {
	var b []byte
	for len(b) < maxString {
		c := w.at(msGeneric, l, addr+uint64(len(b)), 1, false)
		if c == nil {
			return "", false
		}
		if c[0] == 0 {
			break
		}
		b = append(b, c[0])
	}
	return string(b), true
}

// format is printf. Arguments lie one after another, each aligned to its size: 4 bytes for int, 8 for double, long and
// pointers. It returns the text and the number of arguments it used.
func (w *warp) format(l int, formatAddr, args uint64) (text []byte, n int) {
	f, ok := w.cstring(l, formatAddr)
	if !ok {
		return nil, 0
	}
	next := func(size uint64) uint64 {
		args = alignUp(args, size)
		b := w.at(msGeneric, l, args, int(size), false)
		if b == nil {
			return 0
		}
		args += size
		n++
		return readInt(b, int(size))
	}
	for len(f) > 0 && w.fault == nil {
		k := strings.IndexByte(f, '%')
		if k < 0 {
			k = len(f)
		}
		text = append(text, f[:k]...)
		if f = f[k:]; f == "" {
			break
		}
		f = f[1:]
		spec := "%"
		for f != "" && strings.IndexByte("-+ #0", f[0]) >= 0 {
			spec += f[:1]
			f = f[1:]
		}
		number := func() {
			if f != "" && f[0] == '*' {
				f = f[1:]
				v := max(min(int(int32(next(4))), maxWidth), -maxWidth)
				spec += strconv.Itoa(v)
				return
			}
			digits := ""
			for f != "" && digit(f[0]) {
				digits += f[:1]
				f = f[1:]
			}
			if v, err := strconv.Atoi(digits); err == nil {
				spec += strconv.Itoa(min(v, maxWidth))
			}
		}
		number()
		if f != "" && f[0] == '.' {
			spec += "."
			f = f[1:]
			number()
		}
		long := false
		for f != "" && strings.IndexByte("lhzjt", f[0]) >= 0 {
			long = long || f[0] != 'h'
			f = f[1:]
		}
		if f == "" {
			break
		}
		verb := f[0]
		f = f[1:]
		integer := func() uint64 {
			if long {
				return next(8)
			}
			return next(4)
		}
		switch verb {
		case '%':
			text = append(text, '%')
		case 'd', 'i':
			v := int64(integer())
			if !long {
				v = int64(int32(v))
			}
			text = fmt.Appendf(text, spec+"d", v)
		case 'u':
			text = fmt.Appendf(text, spec+"d", integer())
		case 'x', 'X', 'o':
			text = fmt.Appendf(text, spec+string(verb), integer())
		case 'c':
			text = append(text, byte(next(4)))
		case 'p':
			text = fmt.Appendf(text, "%#x", next(8))
		case 's':
			if s, ok := w.cstring(l, next(8)); ok {
				text = fmt.Appendf(text, spec+"s", s)
			}
		case 'e', 'E', 'f', 'F', 'g', 'G', 'a', 'A':
			v := math.Float64frombits(next(8))
			text = append(text, float(spec, verb, v)...)
		default:
			text = append(text, spec...)
			text = append(text, verb)
		}
	}
	return text, n
}

// float prints as C does where Go differs: six digits by default, infinities and NaN in lower case.
func float(spec string, verb byte, v float64) string {
	if math.IsInf(v, 0) || v != v {
		s := "nan"
		if v == v {
			s = "inf"
		}
		if math.Signbit(v) {
			s = "-" + s
		}
		if width, _, _ := strings.Cut(strings.TrimLeft(spec, "%+ #0"), "."); width != "" && width != "-" {
			return fmt.Sprintf("%"+width+"s", s)
		}
		return s
	}
	goVerb := string(verb)
	switch verb {
	case 'a':
		goVerb = "x"
	case 'A':
		goVerb = "X"
	}
	if !strings.Contains(spec, ".") && verb != 'a' && verb != 'A' {
		spec += ".6"
	}
	return fmt.Sprintf(spec+goVerb, v)
}
