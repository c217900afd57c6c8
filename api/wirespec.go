package api

import (
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

// parseWire reads wire.spec.
func parseWire(text string) ([]WireStruct, error) {
	var out []WireStruct
	var cur *WireStruct
	op := uint16(FirstWireOp)
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
			if len(f) < 2 || len(f) > 2 && f[2] != "op" || seen[f[1]] {
				return nil, fail("want: struct NAME [op [FLAG …]], each name once")
			}
			seen[f[1]] = true
			out = append(out, WireStruct{Name: f[1], Doc: strings.TrimSpace(doc)})
			cur = &out[len(out)-1]
			if len(f) == 2 {
				continue
			}
			cur.Op = op
			op++
			for _, word := range f[3:] {
				if err := checkFlag(wireFlags, word); err != nil {
					return nil, fail(err.Error())
				}
				cur.Flags = append(cur.Flags, Flag(word))
			}
		case cur == nil:
			return nil, fail("outside of a struct")
		case f[0] == "then":
			cur.Doc = strings.TrimSpace(cur.Doc + "\nthen " + strings.Join(f[1:], " "))
		case f[0] == "reply":
			if len(f) != 2 {
				return nil, fail("want: reply NAME")
			}
			cur.Reply, replies[f[1]] = f[1], i+1
		default:
			if len(f) != 2 {
				return nil, fail("want: TYPE NAME")
			}
			base, dims, err := splitArray(f[0])
			t, ok := wireTypes[base]
			if err != nil || !ok {
				return nil, fail("unknown type " + f[0])
			}
			n := t.size
			for _, d := range dims {
				if d > maxWireStruct {
					return nil, fail("array too large")
				}
				n = min(n*d, maxWireStruct+1)
			}
			if cur.Size+n > maxWireStruct {
				return nil, fail("structure too large")
			}
			at := (cur.Size + t.size - 1) / t.size * t.size
			cur.Fields = append(cur.Fields, Field{Name: f[1], CType: t.ctype, Offset: at, Array: dims})
			cur.Size = at + n
		}
	}
	for _, w := range out {
		if w.Size%8 != 0 {
			return nil, &InputError{"wire.spec", w.Name, "its size is no multiple of 8"}
		}
		if w.Reply != "" && !seen[w.Reply] {
			return nil, &InputError{"wire.spec", "line " + strconv.Itoa(replies[w.Reply]) + ": " + w.Name, "unknown reply " + w.Reply}
		}
	}
	return out, nil
}
