package api

import (
	"fmt"
	"slices"
	"strings"
)

// What each word of a call is. Types say it of most: handles, devices, addresses of device memory. Lines of the
// .semantics file say it of numbers that name objects, of pointers in structures, and of what lies in unions.

// selected is the field of a "when" line that stands for the value of the parameter which says what a union holds.
const selected = "@"

// objects makes the types of "object" lines kinds of their own, behind those of the handles.
func (b *binder) objects() error {
	for name, answer := range b.sem.unknown {
		t, ok := b.lib.Lookup(name)
		if !ok || t.Kind != "uint" || t.Size != 8 {
			return fmt.Errorf("%s is no type of 64-bit numbers", name)
		}
		if !b.result(answer) {
			return fmt.Errorf("%s is no result", answer)
		}
		b.lib.Objects = append(b.lib.Objects, name)
	}
	slices.Sort(b.lib.Objects)
	b.lib.Unknown = b.sem.unknown
	return nil
}

// TokenBytes is the size of every structure that a token stands for.
const TokenBytes = 64

// tokens makes the types of "token" lines kinds of their own, behind those of the objects.
func (b *binder) tokens() error {
	for name, answer := range b.sem.tokens {
		if t, ok := b.lib.Lookup(name); !ok || t.Kind != "struct" || t.Size != TokenBytes {
			return fmt.Errorf("%s is no structure of %d bytes", name, TokenBytes)
		}
		if !b.result(answer) {
			return fmt.Errorf("%s is no result", answer)
		}
		b.lib.Tokens = append(b.lib.Tokens, name)
	}
	slices.Sort(b.lib.Tokens)
	b.lib.NoToken = b.sem.tokens
	return nil
}

// token is the name of a type that tokens stand for, "" for other types.
func (b *binder) token(ctype string) string {
	if slices.Contains(b.lib.Tokens, ctype) {
		return ctype
	}
	return ""
}

// result says whether a name is one of the library's results.
func (b *binder) result(name string) bool {
	_, ok := b.lib.Enums["cudaError_enum"][name]
	return ok
}

// object is the name of a type of objects, "" for other types.
func (b *binder) object(ctype string) string {
	if slices.Contains(b.lib.Objects, ctype) {
		return ctype
	}
	return ""
}

// members resolves the "member" lines.
func (b *binder) members() error {
	for _, m := range b.sem.members {
		where := "member " + m.Struct + " " + m.Const
		outer, record := b.lib.Struct(m.Struct), b.lib.Struct(m.Record)
		if outer == nil || record == nil {
			return &InputError{b.sem.file, where, m.Struct + " or " + m.Record + " is no structure"}
		}
		t, _ := b.lib.Lookup(outer.Fields[0].CType)
		v, ok := b.lib.Enums[b.lib.enumTag(t.Name)][m.Const]
		if !ok {
			return &InputError{b.sem.file, where, m.Const + " is no value of " + outer.Fields[0].CType}
		}
		if err := b.checkPointers(m.Record); err != nil {
			return &InputError{b.sem.file, where, err.Error()}
		}
		m.Value, m.Size = v, record.Size
		m.Patch, m.Words, m.Refuse = b.patches(m.Record), b.words(m.Record), b.refusals(m.Record)
		for _, f := range record.Fields { // what the records within a record refuse
			if inner := b.lib.Struct(f.CType); inner != nil {
				for _, w := range b.refusals(inner.Name) {
					w.Offset += f.Offset
					m.Refuse = append(m.Refuse, w)
				}
			}
		}
		b.lib.Members = append(b.lib.Members, m)
	}
	return nil
}

// selectMember notes which parameter says what the union of another holds.
func selectMember(fn *Func, name string) error {
	if !slices.ContainsFunc(fn.Params, func(p Param) bool { return p.Name == name }) {
		return fmt.Errorf("has no parameter %s", name)
	}
	for i := range fn.Params {
		if p := &fn.Params[i]; p.Name != name && strings.HasSuffix(p.CType, "*") {
			p.Select = name
			return nil
		}
	}
	return fmt.Errorf("has no pointer whose meaning %s could say", name)
}

// leaf is a field of a record that is no record itself.
type leaf struct {
	record string // the innermost record with a name
	path   string // in that record
	ctype  string
	typ    Type
	offset int // in the outermost record
	when   *When
	stated bool // by a "when" line
	hidden bool // it lies in a union of which nothing is said
	union  bool // it lies in a union
}

// leaves calls f for each field of a record whose type is known, array elements one by one.
func (b *binder) leaves(record string, f func(leaf)) {
	if s := b.lib.Struct(record); s != nil {
		b.recordLeaves(s, 0, leaf{}, f)
	}
}

func (b *binder) recordLeaves(s *Struct, base int, from leaf, f func(leaf)) {
	from.record, from.path, from.stated = s.Name, "", false
	from.hidden, from.union = from.hidden || s.Union, from.union || s.Union
	b.fieldLeaves(s, base, base, from, f)
}

func (b *binder) fieldLeaves(s *Struct, recordBase, base int, from leaf, f func(leaf)) {
	for _, field := range s.Fields {
		l := from
		l.stated = false
		if field.Name != "" {
			l.path = strings.TrimPrefix(from.path+"."+field.Name, ".")
		}
		if w := b.when(l.record, l.path, recordBase); w != nil {
			l.when, l.stated = w, true
		}
		n := 1
		for _, d := range field.Array {
			n *= d
		}
		if field.Sub != nil {
			l.hidden, l.union = (l.hidden || field.Sub.Union) && !l.stated, l.union || field.Sub.Union
			for i := range n {
				b.fieldLeaves(field.Sub, recordBase, base+field.Offset+i*field.Sub.Size, l, f)
			}
			continue
		}
		t, known := b.lib.Lookup(field.CType)
		if !known {
			continue
		}
		l.typ, l.ctype = t, field.CType
		for i := range n {
			l.offset = base + field.Offset + i*t.Size
			inner := b.lib.Struct(t.Underlying)
			switch {
			case t.Kind != "struct":
				f(l)
			case inner != nil && (!l.hidden || l.stated):
				below := l
				below.hidden = false
				b.recordLeaves(inner, l.offset, below, f)
			}
		}
	}
}

// patches lists the handles and devices of a record. Those in unions, and those that a "when" line names, are there
// under conditions only.
func (b *binder) patches(record string) (out []Patch) {
	b.leaves(record, func(l leaf) {
		switch {
		case l.hidden && !l.stated:
		case l.typ.Kind == "handle" && b.sem.pointers[l.record+"."+l.path] == Number:
			out = append(out, Patch{l.offset, l.typ.Underlying, l.when, l.union})
		case l.ctype == b.lf.device, l.stated && l.typ.Underlying == "int":
			out = append(out, Patch{l.offset, b.lf.device, l.when, true})
		}
	})
	return out
}

// words lists what else in a record is no mere number.
func (b *binder) words(record string) (out []Word) {
	b.leaves(record, func(l leaf) {
		w := Word{
			Offset: l.offset, When: l.when, Union: l.union, Object: b.object(l.ctype), Is: b.sem.pointers[l.record+"."+l.path],
		}
		switch {
		case w.Is != Number:
			b.sem.pointersUsed[l.record+"."+l.path] = true
		case w.Object != "":
			w.Is = Object
		case l.ctype == "CUdeviceptr":
			w.Is = Address
		case l.typ.Kind == "enum":
			w.Is = Enum
		}
		if w.Is != Number && (!l.hidden || l.stated) {
			out = append(out, w)
		}
	})
	return out
}

func (b *binder) when(record, path string, base int) *When {
	for _, c := range b.sem.whens {
		if c.record == record && c.path == path {
			w := b.condition(c)
			if c.field != selected {
				w.Offset += base
			}
			return w
		}
	}
	return nil
}

func (b *binder) refusals(record string) (out []When) {
	for _, c := range b.sem.refuses {
		if c.record == record {
			out = append(out, *b.condition(c))
		}
	}
	return out
}

// condition resolves field and constants; what does not exist never matches, which TestConditions forbids.
func (b *binder) condition(c condition) *When {
	w := &When{Offset: -1}
	if s := b.lib.Struct(c.record); s != nil {
		for _, f := range s.Fields {
			if f.Name == c.field {
				w.Offset = f.Offset
			}
		}
	}
	for _, name := range c.consts {
		for _, values := range b.lib.Enums {
			if v, ok := values[name]; ok {
				w.Values = append(w.Values, v)
				break
			}
		}
	}
	return w
}
