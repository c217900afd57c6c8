package main

import (
	"cmp"
	"strings"

	"scuda.dev/scuda/api"
)

// emitWire writes the Go structures of wire.spec.
func emitWire(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("package wire\n\n// Numbers of the hand-written operations.\nconst (\n")
	for _, w := range spec.Wire {
		if w.Op != 0 {
			b.f("Op%s uint16 = %#x\n", wireName(w.Name), w.Op)
		}
	}
	b.f(")\n\nvar opNames = map[uint16]string{\n")
	for _, w := range spec.Wire {
		if w.Op != 0 {
			b.f("Op%s: %q,\n", wireName(w.Name), w.Name)
		}
	}
	b.f("}\n")
	goWireConsts(b, spec)
	for _, w := range spec.Wire {
		name := wireName(w.Name)
		b.f("\n// %s is the payload", name)
		if w.Op != 0 {
			b.f(" of Op%s", name)
		}
		b.f(".\n")
		for line := range strings.SplitSeq(w.Doc, "\n") {
			if line != "" {
				b.f("// %s\n", line)
			}
		}
		if w.Reply != "" {
			b.f("// It is answered by %s.\n", wireName(w.Reply))
		}
		b.f("type %s struct {\n", name)
		at := 0
		for _, f := range w.Fields {
			t, _ := spec.CUDA.Lookup(f.CType)
			if t.Size == 0 {
				t.Size = wireSize(f.CType)
			}
			at = pad(b, at, f.Offset)
			b.f("%s ", wireName(f.Name))
			n := t.Size
			for _, d := range f.Array {
				b.f("[%d]", d)
				n *= d
			}
			b.f("%s\n", wireGo(f.CType))
			at += n
		}
		pad(b, at, w.Size)
		b.f("}\n\n// Size%s is the size of %s in bytes.\nconst Size%s = %d\n", name, name, name, w.Size)
	}
	return out.GoFile("api/wire/zz_wire_gen.go", b.Bytes())
}

// goWireConsts writes the constants, and names of the messages.
func goWireConsts(b *buffer, spec *api.Spec) {
	note := func(doc string) string {
		if doc == "" {
			return ""
		}
		return " // " + doc
	}
	b.f("\n// Constants of the protocol.\nconst (\n")
	for _, c := range spec.Consts {
		b.f("%s = %#x%s\n", wireName(c.Name), c.Value, note(c.Doc))
	}
	b.f(")\n")
	for _, set := range spec.Sets {
		kind := map[bool]string{true: "Flags", false: "Values"}[set.Flags]
		b.f("\n// %s: %s.\nconst (\n", kind, cmp.Or(set.Doc, set.Name))
		for _, c := range set.Values {
			if !c.Removed {
				b.f("%s = %d%s\n", wireName(set.Name+"_"+c.Name), c.Value, note(c.Doc))
			}
		}
		b.f(")\n")
		if set.Name != "message" {
			continue
		}
		b.f("\nvar messageNames = [...]string{\n")
		for _, c := range set.Values {
			if !c.Removed {
				b.f("%d: %q,\n", c.Value, strings.ToUpper(strings.ReplaceAll(c.Name, "_", " ")))
			}
		}
		b.f("}\n\n// MessageName is a message's name; \"\" of an unknown type.\nfunc MessageName(t uint16) string {\n" +
			"if int(t) < len(messageNames) {\nreturn messageNames[t]\n}\nreturn \"\"\n}\n")
	}
}

// wireName makes a Go name of a name with underscores; parts with digits are acronyms.
func wireName(c string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(c, "_") {
		switch part {
		case "h2d", "d2h", "3d", "id", "jit":
			out.WriteString(strings.ToUpper(part))
		default:
			out.WriteString(api.GoName(part))
		}
	}
	return out.String()
}

func wireGo(ctype string) string {
	if ctype == "float" {
		return "float32"
	}
	return strings.TrimSuffix(ctype, "_t")
}

func wireSize(ctype string) int {
	switch wireGo(ctype) {
	case "uint8", "int8":
		return 1
	case "uint16", "int16":
		return 2
	case "uint64", "int64":
		return 8
	}
	return 4
}
