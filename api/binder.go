package api

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func sameShape(base, fn *Func) error {
	if fn.NoProto {
		return nil
	}
	if len(base.Params) != len(fn.Params) || base.Ret != fn.Ret {
		return fmt.Errorf("its prototype differs from its base's")
	}
	for i := range fn.Params {
		if fn.Params[i].CType != base.Params[i].CType {
			return fmt.Errorf("parameter %d differs from its base's", i+1)
		}
	}
	return nil
}

// binder resolves the parameters of a library's functions.
type binder struct {
	sem *semantics
	lib *Library
	lf  libraryFiles
}

var (
	countPattern = regexp.MustCompile(`^(\*?)(\w+?)(?:-[12])?$`)

	creates  = regexp.MustCompile(`Create|Clone|Instantiate|^cuGraphAdd\w*Node`)
	destroys = regexp.MustCompile(`Destroy|Unload`)
)

func (b *binder) function(fn *Func, r row) error {
	for _, word := range r.flags {
		if err := b.flag(fn, word); err != nil {
			return err
		}
	}
	if fn.Class == Async || fn.Class == Sync {
		fn.Generic = true
	}
	if fn.Generic && fn.NoProto {
		return fmt.Errorf("is to be forwarded but has no known prototype")
	}
	for name := range r.params {
		if !slices.ContainsFunc(fn.Params, func(p Param) bool { return p.Name == name }) {
			return fmt.Errorf("has no parameter %s", name)
		}
	}
	made, deleted := false, false
	for i := range fn.Params {
		p := &fn.Params[i]
		err := b.param(fn, p, r.params[p.Name], &made)
		if err != nil && fn.Generic {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if err != nil {
			p.Dir = Opaque
		}
		if r.params[p.Name].delete || !deleted && p.Dir == Value && p.Handle != "" && destroys.MatchString(fn.Name) {
			p.Delete, deleted = true, true
		}
		if fn.Class == Async && (p.Dir == Out || p.Dir == InOut || p.Dir == Ret) {
			return fmt.Errorf("is asynchronous but has an output %s", p.Name)
		}
	}
	for _, p := range fn.Params {
		if err := countExists(fn, p); err != nil {
			return err
		}
	}
	return nil
}

// flag takes in one flag of a row.
func (b *binder) flag(fn *Func, word string) error {
	if err := checkFlag(rowFlags[b.lf.soname], word); err != nil {
		return err
	}
	fn.Flags = append(fn.Flags, word)
	switch name, value, _ := strings.Cut(word, "="); Flag(name) {
	case FlagPre:
		fn.Pre = true
	case FlagPost:
		fn.Post = true
	case FlagOutsOnError:
		fn.OutsOnError = true
	case FlagGeneric:
		fn.Generic = true
	case FlagUnknown:
		if fn.Unknown = value; !b.result(value) {
			return fmt.Errorf("%s is no result", value)
		}
	case FlagSelect:
		return selectMember(fn, value)
	case FlagAlias:
		if fn.Alias = value; b.lib.ByName[value] == nil {
			return fmt.Errorf("alias of an unknown function %s", value)
		}
	case FlagLike:
		return b.like(fn, value)
	}
	return nil
}

// like gives a function that has no known prototype that of another one.
func (b *binder) like(fn *Func, name string) error {
	other := b.lib.ByName[name]
	if other == nil || other.NoProto || !fn.NoProto {
		return fmt.Errorf("cannot be like %s: that one needs a prototype, and it itself none", name)
	}
	fn.NoProto, fn.Ret = false, other.Ret
	for _, p := range other.Params {
		fn.Params = append(fn.Params, Param{Name: p.Name, CType: p.CType})
	}
	return nil
}

func countExists(fn *Func, p Param) error {
	m := countPattern.FindStringSubmatch(p.Count)
	if p.Count == "" || m == nil {
		return nil
	}
	if _, err := strconv.Atoi(m[2]); err == nil {
		return nil
	}
	for _, q := range fn.Params {
		want := Value
		if m[1] == "*" {
			want = InOut
		}
		if q.Name == m[2] && q.Dir == want {
			return nil
		}
	}
	return fmt.Errorf("parameter %s: its count %s is no value (or, with *, in/out) parameter", p.Name, p.Count)
}

// param resolves one parameter; an error says why the generated encoding cannot carry it.
func (b *binder) param(fn *Func, p *Param, r paramRow, made *bool) error {
	p.GoType = b.lib.GoParam(p.CType)
	t, known := b.lib.Lookup(p.CType)
	if !known {
		return fmt.Errorf("unknown type %s", p.CType)
	}
	p.Elem, p.Size, p.IfNull = p.CType, t.Size, r.null
	if t.Kind != "pointer" {
		p.Dir = Value
		if t.Kind == "func" {
			return fmt.Errorf("a function pointer cannot be forwarded")
		}
		b.element(p, t)
		p.Stream = p.CType == "CUstream"
		if p.Struct {
			return b.checkPointers(t.Underlying)
		}
		return nil
	}
	p.Elem, p.Count, p.IfNull = Elem(p.CType), "1", r.null
	if r.count != "" {
		p.Count = r.count
	}
	et, known := b.lib.Lookup(p.Elem)
	if p.Elem == "void" {
		et, known = Type{Name: "void", Size: 1, Kind: "uint"}, true
	}
	if !known {
		return fmt.Errorf("unknown type %s", p.Elem)
	}
	p.Size = et.Size
	b.element(p, et)
	constant := strings.HasPrefix(p.CType, "const ")
	switch {
	case r.dir != Value:
		p.Dir = r.dir
	case p.CType == "const char *":
		p.Dir = Str
	case p.Elem == "void", et.Kind == "pointer", et.Kind == "func", p.Elem == "char":
		return fmt.Errorf("its direction must be stated")
	case constant:
		p.Dir = In
	case et.Kind == "handle" && creates.MatchString(fn.Name) && !*made:
		p.Dir, *made = New, true
	case et.Kind == "handle":
		p.Dir = Ret
	default:
		p.Dir = Out
	}
	if (p.Dir == In || p.Dir == Out || p.Dir == InOut) && p.Struct {
		return b.checkPointers(et.Underlying)
	}
	if (p.Dir == In || p.Dir == Out || p.Dir == InOut) && et.Kind == "pointer" {
		return fmt.Errorf("an array of pointers cannot be forwarded")
	}
	if (p.Dir == New || p.Dir == Ret) && et.Kind != "handle" {
		return fmt.Errorf("is no pointer to handles")
	}
	if p.Dir == Str || p.Dir == New || p.Dir == Opaque || p.Dir == Null {
		p.Count = "1"
	}
	return nil
}

// element fills in what the value's or pointed-to element's type says.
func (b *binder) element(p *Param, t Type) {
	name := strings.TrimPrefix(p.Elem, "const ")
	p.Signed = t.Kind == "int" || t.Kind == "enum" && !b.lib.UnsignedEnum(t.Underlying)
	p.Float = t.Kind == "float"
	p.Struct = t.Kind == "struct"
	p.Enum = t.Kind == "enum"
	p.Device = name == b.lf.device
	if t.Kind == "handle" {
		p.Handle = t.Underlying
	}
	p.Object = b.object(name)
	p.Token = b.token(name)
	if p.Struct {
		p.Patch = b.patches(t.Underlying)
		p.Words = b.words(t.Underlying)
		p.Refuse = b.refusals(t.Underlying)
	}
}

// checkPointers refuses records with pointers, except those of which "address" and "void" lines say what they are.
func (b *binder) checkPointers(record string) error {
	s := b.lib.Struct(record)
	if s == nil || len(s.Fields) == 0 {
		return fmt.Errorf("the layout of %s is not known", record)
	}
	return b.checkFields(s.Name, s, "")
}

func (b *binder) checkFields(record string, s *Struct, prefix string) error {
	for _, f := range s.Fields {
		path := strings.TrimPrefix(prefix+"."+f.Name, ".")
		if f.Name == "" {
			path = prefix
		}
		if f.Sub != nil {
			if err := b.checkFields(record, f.Sub, path); err != nil {
				return err
			}
			continue
		}
		t, ok := b.lib.Lookup(f.CType)
		if !ok {
			return fmt.Errorf("%s.%s has an unknown type %s", record, path, f.CType)
		}
		switch t.Kind {
		case "struct":
			if err := b.checkFields(t.Underlying, b.lib.Struct(t.Underlying), ""); err != nil {
				return err
			}
		case "pointer", "func":
			if b.sem.pointers[record+"."+path] == Number {
				return fmt.Errorf("%s.%s is a pointer", record, path)
			}
			b.sem.pointersUsed[record+"."+path] = true
		}
	}
	return nil
}
