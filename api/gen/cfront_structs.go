package main

import (
	"fmt"
	"strings"

	"scuda.dev/scuda/api"
)

// twoEnded are the records of copies, which say of both ends the same by members with the prefixes src and dst. The
// front has their ends as structures, so that code can take either; this is what the whole is called there. A record
// that differs from another one only in members that are reserved is the same there.
var twoEnded = map[string]string{
	"struct CUDA_MEMCPY2D_st": "scuda_copy2d", "struct CUDA_MEMCPY3D_PEER_st": "scuda_copy3d",
	"struct CUDA_MEMCPY3D_st": "",
}

// sameCopies are the records of twoEnded without a name, and what they are the same as.
var sameCopies = map[string]string{"struct CUDA_MEMCPY3D_st": "struct CUDA_MEMCPY3D_PEER_st"}

// shortNames are members of such records that have shorter names in the front.
var shortNames = map[string]string{"XInBytes": "x", "MemoryType": "type", "WidthInBytes": "width"}

// structs writes CUDA's records with the types of the calling convention. Padding has members of its own, so that a
// record that was zeroed has no byte that nobody wrote.
func (c *cfront) structs(out *Output) error {
	b := &buffer{}
	b.f("/* CUDA's records with the front's types: handles and device addresses are uint64_t, enumerations int32_t. */\n" +
		"#ifndef SCUDA_STRUCTS_GEN_H\n#define SCUDA_STRUCTS_GEN_H\n#include <stddef.h>\n#include <stdint.h>\n")
	w := structWriter{c, b, map[string]*api.Struct{}}
	for _, s := range c.lib.Structs {
		w.records[s.Tag()] = s
	}
	for _, s := range c.lib.Structs {
		err := error(nil)
		if _, ok := twoEnded[s.Tag()]; ok {
			err = w.copy(s)
		} else if len(s.Fields) > 0 {
			err = w.record(s)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	b.f("#endif\n")
	return out.CFile("shim/front/gen/structs_gen.h", b.Bytes())
}

type structWriter struct {
	*cfront
	b       *buffer
	records map[string]*api.Struct // by C name
}

func (w structWriter) record(s *api.Struct) error {
	w.b.f("\n%s ", s.Tag())
	if err := w.body(s.Fields, s.Union, s.Size, ""); err != nil {
		return err
	}
	if s.Align > 8 {
		w.b.f(" __attribute__((aligned(%d)))", s.Align)
	}
	w.b.f(";\n")
	w.assert(s.Tag(), "", s.Size)
	for _, f := range s.Fields {
		if f.Name != "" {
			w.assert(s.Tag(), f.Name, f.Offset)
		}
	}
	return nil
}

func (w structWriter) assert(tag, field string, value int) {
	if field == "" {
		w.b.f("_Static_assert(sizeof(%s) == %d, \"size of %s\");\n", tag, value, tag)
	} else {
		w.b.f("_Static_assert(offsetof(%s, %s) == %d, \"layout of %s\");\n", tag, field, value, tag)
	}
}

// body writes the members of a record of so many bytes.
func (w structWriter) body(fields []api.Field, union bool, size int, indent string) error {
	w.b.f("{\n")
	at := 0
	for _, f := range fields {
		if !union {
			w.pad(at, f.Offset, indent)
		}
		text, bytes, err := w.fieldType(f, indent)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		for _, d := range f.Array {
			bytes *= d
		}
		at = f.Offset + bytes
		w.b.f("%s  %s", indent, text)
		if f.Name != "" {
			w.b.f(" %s", f.Name)
		}
		for _, d := range f.Array {
			w.b.f("[%d]", d)
		}
		w.b.f(";\n")
	}
	if !union {
		w.pad(at, size, indent)
	}
	w.b.f("%s}", indent)
	return nil
}

func (w structWriter) pad(from, to int, indent string) {
	if to > from {
		w.b.f("%s  uint8_t pad%d[%d];\n", indent, from, to-from)
	}
}

// fieldType gives the type of a member, or of its elements, and how many bytes that has.
func (w structWriter) fieldType(f api.Field, indent string) (string, int, error) {
	if f.Sub != nil {
		kind, tag, _ := strings.Cut(f.CType, " ")
		if strings.Contains(tag, "(unnamed") {
			tag = ""
		} else {
			tag += " "
		}
		inner := structWriter{w.cfront, &buffer{}, w.records}
		err := inner.body(f.Sub.Fields, kind == "union", f.Sub.Size, indent+"  ")
		return kind + " " + tag + inner.b.String(), f.Sub.Size, err
	}
	if elem, ok := strings.CutSuffix(f.CType, "*"); ok {
		if t, ok := w.lib.Lookup(strings.TrimSpace(elem)); ok && t.Kind == "struct" {
			tag, constant := w.tag(t), ""
			if strings.HasPrefix(elem, "const ") {
				constant = "const "
			}
			return constant + tag + " *", 8, nil
		}
		if strings.Contains(elem, "(") {
			return "void *", 8, nil
		}
		text, err := w.ctype(f.CType)
		return strings.TrimSuffix(text, " "), 8, err
	}
	t, ok := w.lib.Lookup(f.CType)
	switch {
	case !ok:
		return "", 0, fmt.Errorf("unknown type %q", f.CType)
	case t.Kind == "struct":
		return w.tag(t), t.Size, nil
	case f.CType == "char":
		return "char", 1, nil
	case t.Kind == "pointer" || t.Kind == "func":
		return "void *", 8, nil
	}
	return scalarC(t), t.Size, nil
}

// tag gives what a record is called in the front.
func (w structWriter) tag(t api.Type) string {
	tag := w.lib.Struct(t.Name).Tag()
	if same, ok := sameCopies[tag]; ok {
		tag = same
	}
	if name, ok := twoEnded[tag]; ok {
		return "struct " + name
	}
	return tag
}

// copy writes a record of twoEnded.
func (w structWriter) copy(s *api.Struct) error {
	if same, ok := sameCopies[s.Tag()]; ok {
		return w.same(s, w.records[same])
	}
	return w.ends(s, twoEnded[s.Tag()])
}

// ends writes a record that has two ends under the name that it has in the front.
func (w structWriter) ends(s *api.Struct, name string) error {
	source, size, rest := []api.Field{}, 0, []api.Field{}
	for _, f := range s.Fields {
		switch {
		case strings.HasPrefix(f.Name, "src"):
			source = append(source, short(f, "src"))
		case strings.HasPrefix(f.Name, "dst"):
			if size == 0 {
				size = f.Offset
			}
			i := len(rest)
			if i >= len(source) || source[i].Name != short(f, "dst").Name || source[i].Offset+size != f.Offset {
				return fmt.Errorf("%s is not what the source has", f.Name)
			}
			rest = append(rest, f)
		}
	}
	if len(rest) != len(source) {
		return fmt.Errorf("%d members of the source, %d of the destination", len(source), len(rest))
	}
	w.b.f("\n/* an end of %s */\nstruct %s_end ", s.Name, name)
	if err := w.body(source, false, size, ""); err != nil {
		return err
	}
	w.b.f(";\n\n/* %s */\nstruct %s {\n  struct %s_end src, dst;\n", s.Name, name, name)
	for _, f := range s.Fields[2*len(source):] {
		text, _, err := w.fieldType(f, "")
		if err != nil {
			return err
		}
		w.b.f("  %s %s;\n", text, short(f, "").Name)
	}
	w.b.f("};\n")
	w.assert("struct "+name, "", s.Size)
	return nil
}

// short is a member of one end: addresses are numbers there.
func short(f api.Field, prefix string) api.Field {
	f.Name = strings.TrimPrefix(f.Name, prefix)
	if name, ok := shortNames[f.Name]; ok {
		f.Name = name
	}
	f.Name = strings.ToLower(f.Name)
	if strings.HasSuffix(f.CType, "*") {
		f.CType = "uint64_t"
	}
	return f
}

// same refuses a record that is not laid out as another one, but for what is reserved.
func (w structWriter) same(s, as *api.Struct) error {
	if s.Size != as.Size || len(s.Fields) != len(as.Fields) {
		return fmt.Errorf("%d members in %d bytes, %s has %d in %d", len(s.Fields), s.Size, as.Name, len(as.Fields), as.Size)
	}
	for i, f := range s.Fields {
		if o := as.Fields[i]; f.Offset != o.Offset || f.Name != o.Name && !strings.HasPrefix(f.Name, "reserved") {
			return fmt.Errorf("%s is not laid out as %s of %s", f.Name, o.Name, as.Name)
		}
	}
	return nil
}
