package api

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// resolver turns the facts' type texts into Types and Structs.
type resolver struct {
	lib     *Library
	facts   *Facts
	file    string
	records map[string]*FactRecord // by C name ("struct X", "union Y")
}

// scalars are the C types whose size does not come from the facts (x86-64 and aarch64 Linux).
var scalars = map[string]Type{
	"char": {Kind: "int", Size: 1}, "signed char": {Kind: "int", Size: 1}, "unsigned char": {Kind: "uint", Size: 1},
	"short": {Kind: "int", Size: 2}, "unsigned short": {Kind: "uint", Size: 2},
	"int": {Kind: "int", Size: 4}, "unsigned int": {Kind: "uint", Size: 4}, "uint32_t": {Kind: "uint", Size: 4},
	"long": {Kind: "int", Size: 8}, "unsigned long": {Kind: "uint", Size: 8}, "uint64_t": {Kind: "uint", Size: 8},
	"long long": {Kind: "int", Size: 8}, "unsigned long long": {Kind: "uint", Size: 8}, "size_t": {Kind: "uint", Size: 8},
	"float": {Kind: "float", Size: 4}, "double": {Kind: "float", Size: 8},
}

// Lookup resolves a C type as it stands in a prototype or field, without "const" and without array dimensions.
func (lib *Library) Lookup(ctype string) (Type, bool) {
	ctype = strings.TrimSpace(strings.TrimPrefix(ctype, "const "))
	if t, ok := scalars[ctype]; ok {
		t.Name, t.Underlying, t.Align = ctype, ctype, t.Size
		return t, true
	}
	if t, ok := lib.Types[ctype]; ok {
		return t, true
	}
	if strings.HasSuffix(ctype, "*") || strings.Contains(ctype, "(*)") {
		return Type{Name: ctype, Underlying: ctype, Size: 8, Align: 8, Kind: "pointer"}, true
	}
	for _, s := range lib.Structs {
		if s.tag == ctype {
			return lib.Types[s.Name], true
		}
	}
	return Type{}, false
}

// Struct finds the record behind a typedef name.
func (lib *Library) Struct(name string) *Struct {
	t, ok := lib.Lookup(name)
	if !ok || t.Kind != "struct" {
		return nil
	}
	for _, s := range lib.Structs {
		if s.Name == t.Underlying {
			return s
		}
	}
	return nil
}

// nameRecords gives anonymous records the typedef names that a .records file states ("typedef #number" a line).
func (r *resolver) nameRecords(file, text string) error {
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		where := "line " + strconv.Itoa(i+1)
		if len(f) != 2 {
			return &InputError{file, where, "want: typedef #number"}
		}
		under, ok := r.facts.Typedefs[f[0]]
		if !ok {
			return &InputError{file, where, f[0] + " is no typedef of the facts"}
		}
		if slices.ContainsFunc(r.facts.Layouts, func(rec FactRecord) bool { return rec.Record == under }) {
			continue // facts of the importer name them
		}
		kind, _, _ := strings.Cut(under, " ")
		anon := kind + " (unnamed " + f[1] + ")"
		found := false
		for j := range r.facts.Layouts {
			rec := &r.facts.Layouts[j]
			size := r.facts.Sizes[f[0]]
			if rec.Record != anon || size == nil || size[0] != rec.Size || size[1] != rec.Align {
				continue
			}
			rec.Record, found = under, true
		}
		if !found {
			return &InputError{file, where, "no record " + anon + " of the size of " + f[0]}
		}
	}
	return nil
}

func (r *resolver) resolve() error {
	r.records = map[string]*FactRecord{}
	r.lib.enumTags = map[string]string{}
	for i := range r.facts.Layouts {
		rec := &r.facts.Layouts[i]
		r.records[rec.Record] = rec
	}
	names := slices.Sorted(maps.Keys(r.facts.Typedefs))
	for _, name := range names {
		t, err := r.typedef(name, 0)
		if err != nil {
			return err
		}
		r.lib.Types[name] = t
		if t.Kind == "handle" && t.Underlying == name {
			r.lib.Handles = append(r.lib.Handles, name)
		}
	}
	for _, name := range names {
		if r.lib.Types[name].Kind == "struct" {
			if err := r.addStruct(r.lib.Types[name].Underlying); err != nil {
				return err
			}
		}
	}
	return nil
}

// typedef follows a chain of typedefs. Underlying is the scalar's C name, or the last typedef name for structs, enums
// and handles.
func (r *resolver) typedef(name string, depth int) (Type, error) {
	under, ok := r.facts.Typedefs[name]
	if !ok || depth > 16 {
		return Type{}, &InputError{r.file, name, "typedef chain does not end"}
	}
	t := Type{Name: name, Underlying: name, Text: under}
	if size := r.facts.Sizes[name]; size != nil {
		t.Size, t.Align = size[0], size[1]
	}
	switch {
	case strings.Contains(under, "(*)"):
		t.Kind, t.Size, t.Align = "func", 8, 8
	case strings.HasPrefix(under, "struct ") && strings.HasSuffix(under, "*"):
		t.Kind, t.Size, t.Align = "handle", 8, 8
	case strings.HasSuffix(under, "*"):
		t.Kind, t.Size, t.Align = "pointer", 8, 8
	case strings.HasPrefix(under, "struct "), strings.HasPrefix(under, "union "):
		t.Kind = "struct"
	case strings.HasPrefix(under, "enum "):
		t.Kind = "enum"
		r.lib.enumTags[name] = strings.TrimPrefix(under, "enum ")
	default:
		if s, ok := scalars[under]; ok {
			t.Kind, t.Underlying, t.Size, t.Align = s.Kind, under, s.Size, s.Size
			break
		}
		u, err := r.typedef(under, depth+1)
		if err != nil {
			return Type{}, err
		}
		u.Name, u.Text = name, under
		return u, nil
	}
	if t.Size == 0 {
		return Type{}, &InputError{r.file, name, "has no size"}
	}
	return t, nil
}

// addStruct adds the record of a typedef, after the records that it contains.
func (r *resolver) addStruct(name string) error {
	if slices.ContainsFunc(r.lib.Structs, func(s *Struct) bool { return s.Name == name }) {
		return nil
	}
	tag := r.facts.Typedefs[name]
	t := r.lib.Types[name]
	s := &Struct{Name: name, Size: t.Size, Align: t.Align, Union: strings.HasPrefix(tag, "union "), tag: tag}
	rec := r.records[tag]
	if rec != nil {
		if rec.Size != t.Size || rec.Align != t.Align {
			return &InputError{r.file, name, "layout and size disagree"}
		}
		var err error
		if s.Fields, _, err = r.fields(rec.Fields, 1, 0); err != nil {
			return err
		}
	}
	for i := range s.Fields {
		if err := r.addNested(&s.Fields[i]); err != nil {
			return err
		}
	}
	r.lib.Structs = append(r.lib.Structs, s)
	return nil
}

func (r *resolver) addNested(f *Field) error {
	if t, ok := r.lib.Types[f.CType]; ok && t.Kind == "struct" {
		f.Sub = nil // the typedef says it all
		return r.addStruct(t.Underlying)
	}
	if f.Sub == nil {
		return nil
	}
	for i := range f.Sub.Fields {
		if err := r.addNested(&f.Sub.Fields[i]); err != nil {
			return err
		}
	}
	return nil
}

// fields reads the fields of one depth; base is the offset of the record that they belong to.
func (r *resolver) fields(in []FactField, depth, base int) (out []Field, used int, err error) {
	i := 0
	for i < len(in) && in[i].Depth >= depth {
		d := in[i]
		f := Field{Offset: d.Offset - base}
		ctype := d.Decl
		if at := strings.LastIndexByte(d.Decl, ' '); at >= 0 {
			ctype, f.Name = strings.TrimSpace(d.Decl[:at]), d.Decl[at+1:]
		}
		if f.CType, f.Array, err = splitArray(ctype); err != nil {
			return nil, 0, &InputError{r.file, d.Decl, err.Error()}
		}
		f.CType = r.untag(f.CType)
		i++
		sub, n, err := r.fields(in[i:], depth+1, d.Offset)
		if err != nil {
			return nil, 0, err
		}
		i += n
		if n == 0 {
			if rec := r.record(f.CType); rec != nil { // arrays of records are not expanded by the facts
				if sub, _, err = r.fields(rec.Fields, 1, 0); err != nil {
					return nil, 0, err
				}
			}
		}
		if len(sub) > 0 {
			f.Sub = &Struct{Fields: sub, Union: strings.HasPrefix(f.CType, "union ")}
			if rec := r.record(f.CType); rec != nil {
				f.Sub.Size, f.Sub.Align = rec.Size, rec.Align
			} else if t, ok := r.lib.Types[f.CType]; ok {
				f.Sub.Size, f.Sub.Align = t.Size, t.Align
			} else {
				return nil, 0, &InputError{r.file, d.Decl, "record without a layout"}
			}
		}
		out = append(out, f)
	}
	return out, i, nil
}

// record finds a record by its tag; anonymous ones are named with or without their enclosing record ("struct
// A::(unnamed #1)", "struct (unnamed #1)").
func (r *resolver) record(ctype string) *FactRecord {
	if rec := r.records[ctype]; rec != nil {
		return rec
	}
	kind, _, _ := strings.Cut(ctype, " ")
	at := strings.LastIndex(ctype, "(unnamed")
	if at < 0 {
		return nil
	}
	for name, rec := range r.records {
		if strings.HasPrefix(name, kind+" ") && strings.HasSuffix(name, ctype[at:]) {
			return rec
		}
	}
	return nil
}

// untag replaces a record's or enum's tag by its typedef name where there is one.
func (r *resolver) untag(ctype string) string {
	if !strings.HasPrefix(ctype, "struct ") && !strings.HasPrefix(ctype, "union ") && !strings.HasPrefix(ctype, "enum ") {
		return ctype
	}
	best := ""
	for name, under := range r.facts.Typedefs {
		if under == ctype && (best == "" || name < best) {
			best = name
		}
	}
	if best == "" {
		return ctype
	}
	return best
}

func splitArray(ctype string) (string, []int, error) {
	base, dims, ok := strings.Cut(ctype, "[")
	if !ok {
		return ctype, nil, nil
	}
	var out []int
	for d := range strings.SplitSeq(strings.TrimSuffix(dims, "]"), "][") {
		n, err := strconv.Atoi(d)
		if err != nil || n <= 0 {
			return "", nil, fmt.Errorf("bad array size %q", d)
		}
		out = append(out, n)
	}
	return strings.TrimSpace(base), out, nil
}

// Elem removes one level of pointer and any const: the type of what a parameter points to; "" when ctype is no pointer.
func Elem(ctype string) string {
	e, ok := strings.CutSuffix(ctype, "*")
	if !ok {
		return ""
	}
	e = strings.TrimSpace(e)
	if !strings.HasSuffix(e, "*") {
		e = strings.TrimPrefix(e, "const ")
	}
	return e
}

// enumTag is the name under which Enums has the constants of a typedef.
func (lib *Library) enumTag(typedef string) string {
	t, ok := lib.Types[typedef]
	if !ok {
		return ""
	}
	return lib.enumTags[t.Underlying]
}

// EnumRange gives the least and the greatest constant of an enum, those aside that only mark its end.
func (lib *Library) EnumRange(typedef string) (low, high int64, ok bool) {
	for name, v := range lib.Enums[lib.enumTag(typedef)] {
		if strings.HasSuffix(name, "_MAX") || v == 0x7fffffff {
			continue
		}
		if !ok {
			low, high, ok = v, v, true
		}
		low, high = min(low, v), max(high, v)
	}
	return low, high, ok
}

// EnumValues gives the constants of an enum in their order, those aside that only mark its end.
func (lib *Library) EnumValues(typedef string) (values []int64) {
	for name, v := range lib.Enums[lib.enumTag(typedef)] {
		if !strings.HasSuffix(name, "_MAX") {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// EnumTypedef is the typedef of an enum in Enums; "" when it has none.
func (lib *Library) EnumTypedef(tag string) string {
	for name, t := range lib.enumTags {
		if t == tag {
			return name
		}
	}
	return ""
}

// Tag is the C name behind the typedef: "struct X" or "union X".
func (s *Struct) Tag() string { return s.tag }
