package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"modernc.org/cc/v4"

	"scuda.dev/scuda/api"
)

// Import reads header once for each set of macros and gives the union of what it declares. Where passes differ, the
// first one counts.
func Import(header string, passes [][]string, prefix string) (*api.Facts, error) {
	path, err := filepath.Abs(header)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	im := &importer{path: path, prefix: prefix, records: map[string]bool{}, facts: &api.Facts{
		Functions: map[string]api.FactFunc{}, Enums: map[string]map[string]int64{}, Typedefs: map[string]string{},
		Sizes: map[string]*[2]int{}}}
	for _, macros := range passes {
		if err := im.pass(macros); err != nil {
			return nil, fmt.Errorf("%s with macros %q: %w", header, macros, err)
		}
	}
	return im.facts, nil
}

type importer struct {
	path, prefix string
	facts        *api.Facts
	records      map[string]bool // records in facts.Layouts
	anonymous    map[cc.Type]string
	unnamed      int
}

func (im *importer) pass(macros []string) error {
	cfg, err := cc.NewConfig("linux", runtime.GOARCH)
	if err != nil {
		return err
	}
	cfg.Header = true
	var defines strings.Builder
	for _, m := range macros {
		fmt.Fprintf(&defines, "#define %s 1\n", m)
	}
	ast, err := cc.Translate(cfg, []cc.Source{
		{Name: "<predefined>", Value: cfg.Predefined}, {Name: "<builtin>", Value: cc.Builtin},
		{Name: "<macros>", Value: defines.String()}, {Name: im.path},
	})
	if err != nil {
		return err
	}
	im.anonymous = map[cc.Type]string{}
	for unit := ast.TranslationUnit; unit != nil; unit = unit.TranslationUnit {
		decl := unit.ExternalDeclaration
		if decl == nil || decl.Declaration == nil || decl.Position().Filename != im.path {
			continue
		}
		if err := im.declaration(decl.Declaration); err != nil {
			return err
		}
	}
	return nil
}

func (im *importer) declaration(d *cc.Declaration) error {
	if d.DeclarationSpecifiers == nil {
		return nil
	}
	alias := ""
	for s := d.DeclarationSpecifiers; s != nil; s = s.DeclarationSpecifiers {
		if s.TypeSpecifier == nil {
			continue
		}
		switch s.TypeSpecifier.Case {
		case cc.TypeSpecifierTypeName:
			alias = s.TypeSpecifier.Token.SrcStr()
		case cc.TypeSpecifierStructOrUnion, cc.TypeSpecifierEnum:
			// A record or enum that is defined here, with or without a typedef.
			if d.InitDeclaratorList == nil {
				if t := s.Type(); t != nil && !t.IsIncomplete() {
					im.named(t, "")
				}
			}
		}
	}
	for l := d.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
		dd := l.InitDeclarator.Declarator
		if t, ok := dd.Type().(*cc.FunctionType); ok && !dd.IsTypename() && strings.HasPrefix(dd.Name(), im.prefix) {
			im.function(dd.Name(), t)
		}
		if dd.IsTypename() {
			if dd.Pointer != nil || dd.DirectDeclarator.Case != cc.DirectDeclaratorIdent {
				im.typedef(dd, "")
				continue
			}
			im.typedef(dd, alias)
		}
	}
	return nil
}

func (im *importer) function(name string, t *cc.FunctionType) {
	if _, ok := im.facts.Functions[name]; ok {
		return
	}
	f := api.FactFunc{Params: []api.FactParam{}, Ret: im.text(t.Result())}
	for _, p := range t.Parameters() {
		if p.Type().Kind() == cc.Void {
			continue
		}
		f.Params = append(f.Params, api.FactParam{Name: p.Name(), Type: im.text(p.Type().Decay())})
	}
	im.facts.Functions[name] = f
}

func (im *importer) typedef(d *cc.Declarator, alias string) {
	name := d.Name()
	if _, ok := im.facts.Typedefs[name]; ok {
		return
	}
	t := d.Type()
	size := &[2]int{int(t.Size()), t.Align()}
	if p, ok := t.(*cc.PointerType); ok && p.Elem().Kind() == cc.Function {
		size = nil
	}
	if t.IsIncomplete() {
		size = nil
	}
	im.facts.Sizes[name] = size
	switch {
	case alias != "":
		im.facts.Typedefs[name] = alias
	case t.Kind() == cc.Struct || t.Kind() == cc.Union || t.Kind() == cc.Enum:
		im.facts.Typedefs[name] = im.named(t, name)
	default:
		im.facts.Typedefs[name] = im.structure(t)
	}
}

// text is a type as it is written, with typedef names.
func (im *importer) text(t cc.Type) string {
	qualifier := ""
	d := t.Typedef()
	// A pointer's own const follows the star and says nothing about a call; before a typedef name of a pointer it is part
	// of the type.
	if a := t.Attributes(); a != nil && a.IsConst() && (t.Kind() != cc.Ptr || d != nil) {
		qualifier = "const "
	}
	if d != nil {
		return qualifier + d.Name()
	}
	return qualifier + im.structure(t)
}

var kinds = map[cc.Kind]string{cc.Void: "void", cc.Char: "char", cc.SChar: "signed char", cc.UChar: "unsigned char",
	cc.Short:  "short",
	cc.UShort: "unsigned short", cc.Int: "int", cc.UInt: "unsigned int", cc.Long: "long", cc.ULong: "unsigned long",
	cc.LongLong: "long long", cc.ULongLong: "unsigned long long", cc.Float: "float", cc.Double: "double"}

// structure is a type without regard to its own typedef name.
func (im *importer) structure(t cc.Type) string {
	switch x := t.(type) {
	case *cc.PointerType:
		if f, ok := x.Elem().(*cc.FunctionType); ok && f.Typedef() == nil {
			var params []string
			for _, p := range f.Parameters() {
				params = append(params, im.text(p.Type().Decay()))
			}
			return im.text(f.Result()) + " (*)(" + strings.Join(params, ", ") + ")"
		}
		elem := im.text(x.Elem())
		if strings.HasSuffix(elem, "*") {
			return elem + "*"
		}
		return elem + " *"
	case *cc.ArrayType:
		dims := ""
		var elem cc.Type = x
		for a, ok := elem.(*cc.ArrayType); ok; a, ok = elem.(*cc.ArrayType) {
			dims += "[" + strconv.FormatInt(a.Len(), 10) + "]"
			elem = a.Elem()
		}
		return im.text(elem) + dims
	}
	if s, ok := kinds[t.Kind()]; ok {
		return s
	}
	return im.named(t, "")
}

// fields is what struct and union types have in common.
type fields interface {
	cc.Type
	NumFields() int
	FieldByIndex(int) *cc.Field
}

// named gives the C name of a record or enum and makes sure that it is in the facts. What has no tag is called after
// its typedef, or numbered within outer.
func (im *importer) named(t cc.Type, typedef string) string { return im.namedIn(t, typedef, "") }

func (im *importer) namedIn(t cc.Type, typedef, outer string) string {
	var kind, tag string
	switch x := t.(type) {
	case *cc.StructType:
		tok := x.Tag()
		kind, tag = "struct", tok.SrcStr()
	case *cc.UnionType:
		tok := x.Tag()
		kind, tag = "union", tok.SrcStr()
	case *cc.EnumType:
		tok := x.Tag()
		kind, tag = "enum", tok.SrcStr()
	default:
		return t.String()
	}
	if tag == "" {
		tag = typedef
	}
	if tag == "" {
		tag = im.anonymous[t]
	}
	inside := tag
	if tag == "" {
		im.unnamed++
		tag = fmt.Sprintf("(unnamed #%d)", im.unnamed)
		inside = outer // what lies in a nameless record is called after the named one around it
		if outer != "" {
			tag = outer + "::" + tag
		}
		im.anonymous[t] = tag
	}
	name := kind + " " + tag
	switch x := t.(type) {
	case *cc.EnumType:
		im.enum(tag, x)
	case fields:
		im.record(name, inside, x)
	}
	return name
}

func (im *importer) enum(tag string, t *cc.EnumType) {
	if im.facts.Enums[tag] != nil || t.IsIncomplete() {
		return
	}
	values := map[string]int64{}
	for _, e := range t.Enumerators() {
		switch v := e.Value().(type) {
		case cc.Int64Value:
			values[e.Token.SrcStr()] = int64(v)
		case cc.UInt64Value:
			if v <= math.MaxInt64 {
				values[e.Token.SrcStr()] = int64(v)
			}
		}
	}
	im.facts.Enums[tag] = values
}

func (im *importer) record(name, tag string, t fields) {
	if im.records[name] || t.IsIncomplete() {
		return
	}
	im.records[name] = true
	out := im.flatten(t, tag, 1, 0)
	im.facts.Layouts = append(im.facts.Layouts, api.FactRecord{
		Record: name, Size: int(t.Size()), Align: t.Align(), Fields: out,
	})
}

// flatten lists the fields; those of records inside follow their field, one level deeper, unless it is an array. The
// parser forgets the const of what a field points to; nothing depends on it.
func (im *importer) flatten(t fields, tag string, depth, base int) []api.FactField {
	out := []api.FactField{}
	for i := range t.NumFields() {
		f := t.FieldByIndex(i)
		ft := f.Type()
		elem := ft
		for a, ok := elem.(*cc.ArrayType); ok; a, ok = elem.(*cc.ArrayType) {
			elem = a.Elem()
		}
		var decl string
		inner, isRecord := elem.(fields)
		if isRecord && elem.Typedef() == nil {
			decl = im.namedIn(elem, "", tag) + strings.TrimPrefix(im.structure(ft), im.structure(elem))
		} else {
			decl = im.text(ft)
			if isRecord {
				im.named(elem, elem.Typedef().Name())
			}
		}
		at := base + int(f.Offset())
		out = append(out, api.FactField{Decl: decl + " " + f.Name(), Depth: depth, Offset: at})
		if isRecord && elem == ft {
			out = append(out, im.flatten(inner, tag, depth+1, at)...)
		}
	}
	return out
}
