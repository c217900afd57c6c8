package api

import (
	"fmt"
	"slices"
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

// WireConst is a constant of the protocol.
type WireConst struct {
	Name    string
	Value   uint64
	Doc     string
	Removed bool // there is no such value any more; its number stays reserved
}

// WireSet is a group of constants that a field takes its value from: flags, of which it may have several, or one of an
// enumeration.
type WireSet struct {
	Name, Doc string
	Flags     bool
	Values    []WireConst
}

// wireFile is what wire.spec says.
type wireFile struct {
	structs, removed []WireStruct // removed: operations that there are no more
	consts           []WireConst
	sets             []WireSet
}

// wireParser reads wire.spec line by line.
type wireParser struct {
	wireFile
	line    int
	cur     *WireStruct
	set     *WireSet
	names   map[string]bool
	numbers map[uint16]bool // of operations
	replies map[string]int  // the line that names one
}

// parseWire reads wire.spec.
func parseWire(text string) (*wireFile, error) {
	p := &wireParser{names: map[string]bool{}, numbers: map[uint16]bool{}, replies: map[string]int{}}
	for i, line := range strings.Split(text, "\n") {
		p.line = i + 1
		code, doc, _ := strings.Cut(line, "#")
		f := strings.Fields(code)
		if len(f) == 0 {
			continue
		}
		if err := p.parse(f, strings.TrimSpace(doc)); err != nil {
			return nil, &InputError{"wire.spec", "line " + strconv.Itoa(p.line), err.Error()}
		}
	}
	for _, w := range p.structs {
		if w.Size%8 != 0 {
			return nil, &InputError{"wire.spec", "line " + strconv.Itoa(w.line) + ": " + w.Name, "its size is no multiple of 8"}
		}
		if w.Reply != "" && !slices.ContainsFunc(p.structs, func(r WireStruct) bool { return r.Name == w.Reply }) {
			return nil, &InputError{
				"wire.spec", "line " + strconv.Itoa(p.replies[w.Reply]) + ": " + w.Name, "unknown reply " + w.Reply,
			}
		}
	}
	return &p.wireFile, nil
}

func (p *wireParser) parse(f []string, doc string) error {
	switch f[0] {
	case "struct":
		return p.structure(f, doc)
	case "removed":
		if p.set == nil {
			return p.removedOp(f)
		}
		if len(f) != 3 {
			return fmt.Errorf("want: removed NAME VALUE")
		}
		return p.value(f[1], f[2], WireConst{Doc: doc, Removed: true})
	case "const":
		if len(f) != 3 {
			return fmt.Errorf("want: const NAME VALUE")
		}
		p.cur, p.set = nil, nil
		c, err := p.number(f[1], f[2], WireConst{Doc: doc})
		p.consts = append(p.consts, c)
		return err
	case "flags", "enum":
		if len(f) != 2 || p.names[f[1]+" values"] {
			return fmt.Errorf("want: %s NAME, each name once", f[0])
		}
		p.names[f[1]+" values"] = true
		p.sets = append(p.sets, WireSet{Name: f[1], Doc: doc, Flags: f[0] == "flags"})
		p.cur, p.set = nil, &p.sets[len(p.sets)-1]
		return nil
	}
	switch {
	case p.set != nil && len(f) == 2:
		return p.value(f[0], f[1], WireConst{Doc: doc})
	case p.set != nil:
		return fmt.Errorf("want: NAME VALUE")
	case p.cur == nil:
		return fmt.Errorf("outside of a struct")
	}
	return p.member(f)
}

// structure reads "struct NAME [op NUMBER [FLAG …]]".
func (p *wireParser) structure(f []string, doc string) error {
	if len(f) < 2 || len(f) > 2 && f[2] != "op" || len(f) == 3 || p.names[f[1]] {
		return fmt.Errorf("want: struct NAME [op NUMBER [FLAG …]], each name once")
	}
	p.names[f[1]] = true
	p.structs = append(p.structs, WireStruct{Name: f[1], Doc: doc, line: p.line})
	p.cur, p.set = &p.structs[len(p.structs)-1], nil
	if len(f) == 2 {
		return nil
	}
	var err error
	if p.cur.Op, err = p.operation(f[3]); err != nil {
		return err
	}
	for _, word := range f[4:] {
		if err := checkFlag(wireFlags, word); err != nil {
			return err
		}
		p.cur.Flags = append(p.cur.Flags, Flag(word))
	}
	return nil
}

// removedOp reads "removed NAME op NUMBER".
func (p *wireParser) removedOp(f []string) error {
	if len(f) != 4 || f[2] != "op" || p.names[f[1]] {
		return fmt.Errorf("want: removed NAME op NUMBER, each name once")
	}
	w := WireStruct{Name: f[1]}
	var err error
	if w.Op, err = p.operation(f[3]); err != nil {
		return err
	}
	p.names[f[1]], p.cur, p.removed = true, nil, append(p.removed, w)
	return nil
}

// operation reads an operation's number, which no other line may have.
func (p *wireParser) operation(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n < FirstWireOp {
		return 0, fmt.Errorf("%q is no number from %#x to 0xffff", text, FirstWireOp)
	}
	if p.numbers[uint16(n)] {
		return 0, fmt.Errorf("%#x is another operation's number", n)
	}
	p.numbers[uint16(n)] = true
	return uint16(n), nil
}

// value adds a value to the set; in one set there is each but once, and flags are single bits.
func (p *wireParser) value(name, text string, c WireConst) error {
	c, err := p.number(p.set.Name+" "+name, text, c)
	if err != nil {
		return err
	}
	c.Name = name
	if p.set.Flags && (c.Value == 0 || c.Value&(c.Value-1) != 0) {
		return fmt.Errorf("%s is no single bit", text)
	}
	if slices.ContainsFunc(p.set.Values, func(v WireConst) bool { return v.Value == c.Value }) {
		return fmt.Errorf("%s is another name's value", text)
	}
	p.set.Values = append(p.set.Values, c)
	return nil
}

// number reads a constant: a number, or one that is shifted (1<<20).
func (p *wireParser) number(name, text string, c WireConst) (WireConst, error) {
	base, shift, shifted := strings.Cut(text, "<<")
	n, err := strconv.ParseUint(base, 0, 32)
	by := uint64(0)
	if err == nil && shifted {
		by, err = strconv.ParseUint(shift, 10, 5)
	}
	if err != nil || p.names["value "+name] {
		return c, fmt.Errorf("want: a number such as 3, 0x10 or 1<<20, each name once; got %s %s", name, text)
	}
	p.names["value "+name] = true
	c.Name, c.Value = name, n<<by
	return c, nil
}

// member reads a line of a structure: a field, or what is said of the structure.
func (p *wireParser) member(f []string) error {
	switch f[0] {
	case "then":
		text := strings.Join(f[1:], " ")
		p.cur.Then = append(p.cur.Then, text)
		p.cur.Doc = strings.TrimSpace(p.cur.Doc + "\nthen " + text)
		return nil
	case "carries":
		if len(f) < 2 {
			return fmt.Errorf("want: carries RECORD…")
		}
		p.cur.Carries = append(p.cur.Carries, f[1:]...)
		return nil
	case "reply":
		if len(f) != 2 {
			return fmt.Errorf("want: reply NAME")
		}
		p.cur.Reply, p.replies[f[1]] = f[1], p.line
		return nil
	}
	if len(f) != 2 {
		return fmt.Errorf("want: TYPE NAME")
	}
	base, dims, err := splitArray(f[0])
	t, ok := wireTypes[base]
	if err != nil || !ok {
		return fmt.Errorf("unknown type %s", f[0])
	}
	n := t.size
	for _, d := range dims {
		if d > maxWireStruct {
			return fmt.Errorf("array too large")
		}
		n = min(n*d, maxWireStruct+1)
	}
	if p.cur.Size+n > maxWireStruct {
		return fmt.Errorf("structure too large")
	}
	at := (p.cur.Size + t.size - 1) / t.size * t.size
	p.cur.Fields = append(p.cur.Fields, Field{Name: f[1], CType: t.ctype, Offset: at, Array: dims})
	p.cur.Size = at + n
	return nil
}

// checkCarried refuses records of wire.spec that CUDA does not have.
func (s *Spec) checkCarried() error {
	for _, w := range s.Wire {
		for _, name := range w.Carries {
			if r := s.CUDA.Struct(name); r == nil || len(r.Fields) == 0 {
				return &InputError{
					"wire.spec", "line " + strconv.Itoa(w.line) + ": " + w.Name, "carries " + name + ", which is no record of CUDA's",
				}
			}
		}
	}
	return nil
}
