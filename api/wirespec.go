package api

import (
	"fmt"
	"strconv"
	"strings"
)

var wireTypes = map[string]struct {
	ctype string
	size  int
}{
	"u8": {"uint8_t", 1}, "u16": {"uint16_t", 2}, "u32": {"uint32_t", 4}, "u64": {"uint64_t", 8},
	"i32": {"int32_t", 4}, "i64": {"int64_t", 8}, "f32": {"float", 4},
}

// maxWireStruct bounds a payload's fixed part.
const maxWireStruct = 1 << 16

// parseWire reads wire.spec: the structures, and the operations that there are no more.
func parseWire(text string) (out, removed []WireStruct, err error) {
	var cur *WireStruct
	numbers := map[uint16]bool{}
	// number reads an operation's number, which no other line may have.
	number := func(text string) (uint16, error) {
		n, err := strconv.ParseUint(text, 0, 16)
		if err != nil || n < FirstWireOp {
			return 0, fmt.Errorf("%q is no number from %#x to 0xffff", text, FirstWireOp)
		}
		if numbers[uint16(n)] {
			return 0, fmt.Errorf("%#x is another operation's number", n)
		}
		numbers[uint16(n)] = true
		return uint16(n), nil
	}
	seen, replies := map[string]bool{}, map[string]int{} // replies: the line that names one
	for i, line := range strings.Split(text, "\n") {
		code, doc, _ := strings.Cut(line, "#")
		f := strings.Fields(code)
		if len(f) == 0 {
			continue
		}
		fail := func(why string) error { return &InputError{"wire.spec", "line " + strconv.Itoa(i+1), why} }
		switch {
		case f[0] == "struct":
			if len(f) < 2 || len(f) > 2 && f[2] != "op" || len(f) == 3 || seen[f[1]] {
				return nil, nil, fail("want: struct NAME [op NUMBER [FLAG …]], each name once")
			}
			seen[f[1]] = true
			out = append(out, WireStruct{Name: f[1], Doc: strings.TrimSpace(doc), line: i + 1})
			cur = &out[len(out)-1]
			if len(f) == 2 {
				continue
			}
			if cur.Op, err = number(f[3]); err != nil {
				return nil, nil, fail(err.Error())
			}
			for _, word := range f[4:] {
				if err := checkFlag(wireFlags, word); err != nil {
					return nil, nil, fail(err.Error())
				}
				cur.Flags = append(cur.Flags, Flag(word))
			}
		case f[0] == "removed":
			if len(f) != 4 || f[2] != "op" || seen[f[1]] {
				return nil, nil, fail("want: removed NAME op NUMBER, each name once")
			}
			w := WireStruct{Name: f[1]}
			if w.Op, err = number(f[3]); err != nil {
				return nil, nil, fail(err.Error())
			}
			seen[f[1]], cur, removed = true, nil, append(removed, w)
		case cur == nil:
			return nil, nil, fail("outside of a struct")
		case f[0] == "then":
			cur.Then = append(cur.Then, strings.Join(f[1:], " "))
			cur.Doc = strings.TrimSpace(cur.Doc + "\nthen " + strings.Join(f[1:], " "))
		case f[0] == "carries":
			if len(f) < 2 {
				return nil, nil, fail("want: carries RECORD…")
			}
			cur.Carries = append(cur.Carries, f[1:]...)
		case f[0] == "reply":
			if len(f) != 2 {
				return nil, nil, fail("want: reply NAME")
			}
			cur.Reply, replies[f[1]] = f[1], i+1
		default:
			if len(f) != 2 {
				return nil, nil, fail("want: TYPE NAME")
			}
			base, dims, err := splitArray(f[0])
			t, ok := wireTypes[base]
			if err != nil || !ok {
				return nil, nil, fail("unknown type " + f[0])
			}
			n := t.size
			for _, d := range dims {
				if d > maxWireStruct {
					return nil, nil, fail("array too large")
				}
				n = min(n*d, maxWireStruct+1)
			}
			if cur.Size+n > maxWireStruct {
				return nil, nil, fail("structure too large")
			}
			at := (cur.Size + t.size - 1) / t.size * t.size
			cur.Fields = append(cur.Fields, Field{Name: f[1], CType: t.ctype, Offset: at, Array: dims})
			cur.Size = at + n
		}
	}
	for _, w := range out {
		if w.Size%8 != 0 {
			return nil, nil, &InputError{"wire.spec", w.Name, "its size is no multiple of 8"}
		}
		if w.Reply != "" && !seen[w.Reply] {
			return nil, nil, &InputError{"wire.spec", "line " + strconv.Itoa(replies[w.Reply]) + ": " + w.Name, "unknown reply " + w.Reply}
		}
	}
	return out, removed, nil
}

// checkCarried refuses records of wire.spec that CUDA does not have.
func (s *Spec) checkCarried() error {
	for _, w := range s.Wire {
		for _, name := range w.Carries {
			if r := s.CUDA.Struct(name); r == nil || len(r.Fields) == 0 {
				return &InputError{"wire.spec", "line " + strconv.Itoa(w.line) + ": " + w.Name, "carries " + name + ", which is no record of CUDA's"}
			}
		}
	}
	return nil
}
