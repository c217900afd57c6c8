package api

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// The digest is made of everything that decides what the bytes of a session mean, resolved: not of the description's
// files, in which comments, reasons and properties of one side alone may change while the two sides go on understanding
// each other.

// encodingFlags are those flags of rows that change the bytes of a call.
var encodingFlags = []Flag{
	FlagArray, FlagBytes, FlagFills, FlagFresh, FlagOutsOnError, FlagPadded, FlagTail, FlagVersioned,
}

// digest hashes the layout, whose lines' order means nothing.
func (s *Spec) digest() [32]byte {
	return sha256.Sum256([]byte(strings.Join(s.layout(), "\n")))
}

// layout describes what travels, a line for each operation, structure and record.
func (s *Spec) layout() []string {
	var lines []string
	for name, lib := range map[string]*Library{cudaFiles.name: s.CUDA, nvmlFiles.name: s.NVML} {
		for _, fn := range lib.Funcs {
			if !fn.PTSZ && fn.Op != 0 && !fn.NoProto && (fn.Generic || lib == s.NVML) {
				lines = append(lines, fmt.Sprintf("%s %d%s", name, fn.Op, lib.callLayout(fn)))
			}
		}
		for _, m := range lib.Members {
			lines = append(lines, fmt.Sprintf("%s %s %d %s", name, m.Struct, m.Value, lib.recordLayout(lib.Struct(m.Record))))
		}
	}
	for _, w := range s.Wire {
		line := fmt.Sprintf("wire %s %d %d", w.Name, w.Op, w.Size)
		for _, f := range w.Fields {
			// with names: fields of one type may change places
			line += fmt.Sprintf(" %d:%s:%s%v", f.Offset, f.Name, f.CType, f.Array)
		}
		for _, record := range w.Carries {
			line += " " + s.CUDA.recordLayout(s.CUDA.Struct(record))
		}
		lines = append(lines, line+" then "+strings.Join(w.Then, ", then ")+" reply "+w.Reply)
	}
	for _, c := range s.Consts {
		lines = append(lines, fmt.Sprintf("const %s %d", c.Name, c.Value))
	}
	for _, set := range s.Sets {
		for _, c := range set.Values {
			if !c.Removed {
				lines = append(lines, fmt.Sprintf("value %s %s %d", set.Name, c.Name, c.Value))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// callLayout describes a call's parameters in their order, and what changes their encoding.
func (lib *Library) callLayout(fn *Func) string {
	var b strings.Builder
	for _, p := range fn.Params {
		fmt.Fprintf(&b, " %s %s", p.Dir, lib.typeLayout(p.Elem))
		if p.Dir != Value && p.Count != "1" {
			fmt.Fprintf(&b, "[%s]", countLayout(fn, p.Count))
		}
	}
	for _, flag := range encodingFlags {
		if value, ok := fn.FlagValue(flag); ok {
			fmt.Fprintf(&b, " %s=%s", flag, value)
		}
	}
	return b.String()
}

// countLayout names the parameter that counts by its place.
func countLayout(fn *Func, count string) string {
	m := countPattern.FindStringSubmatch(count)
	if m == nil {
		return count
	}
	for i, p := range fn.Params {
		if p.Name == m[2] {
			return strings.Replace(count, m[2], fmt.Sprintf("#%d", i), 1)
		}
	}
	return count
}

// typeLayout describes a value: a handle or an object by its type, a number by sign and size, a record by its fields.
func (lib *Library) typeLayout(ctype string) string {
	name := strings.TrimPrefix(ctype, "const ")
	t, known := lib.Lookup(name)
	switch {
	case !known:
		return name // void: bytes
	case t.Kind == "struct":
		return lib.recordLayout(lib.Struct(t.Underlying))
	case t.Kind == "handle", slices.Contains(lib.Objects, name):
		return name
	}
	return fmt.Sprintf("%s%d", t.Kind, 8*t.Size)
}

// recordLayout describes a record: the offset and type of each field.
func (lib *Library) recordLayout(s *Struct) string {
	if s == nil {
		return "{}"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "{%d", s.Size)
	for _, f := range s.Fields {
		var layout string
		if f.Sub != nil {
			layout = lib.recordLayout(f.Sub)
		} else {
			layout = lib.typeLayout(f.CType)
		}
		fmt.Fprintf(&b, " %d:%s", f.Offset, layout)
		for _, d := range f.Array {
			fmt.Fprintf(&b, "[%d]", d)
		}
	}
	b.WriteString("}")
	return b.String()
}
