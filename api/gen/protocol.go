package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"scuda.dev/scuda/api"
)

// protocolPage is written by hand but for the tables between these lines.
const (
	protocolPage = "docs/protocol.md"
	tablesBegin  = "<!-- tables of api/wire.spec: written by api/gen -->\n"
	tablesEnd    = "<!-- end of the tables -->\n"
)

// emitProtocol writes the tables of the wire's constants into the page of the protocol.
func emitProtocol(spec *api.Spec, out *Output) error {
	text, err := os.ReadFile(filepath.Join(out.root, protocolPage))
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), tablesBegin)
	_, after, ok2 := strings.Cut(rest, tablesEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s needs the lines %q and %q, between which the tables go", protocolPage, tablesBegin, tablesEnd)
	}
	b := &buffer{}
	b.f("%s%s", before, tablesBegin)
	b.f("| constant | value | |\n|---|---|---|\n")
	for _, c := range spec.Consts {
		b.f("| `%s` | %s | %s |\n", c.Name, constant(c), c.Doc)
	}
	b.f("\n| operation | number |\n|---|---|\n")
	for _, w := range spec.Wire {
		if w.Op != 0 {
			b.f("| `%s` | %#x |\n", w.Name, w.Op)
		}
	}
	for _, set := range spec.Sets {
		kind := map[bool]string{true: "flags", false: "values"}[set.Flags]
		b.f("\n| %s: %s | | |\n|---|---|---|\n", kind, set.Doc)
		for _, c := range set.Values {
			if !c.Removed {
				b.f("| `%s` | %d | %s |\n", c.Name, c.Value, c.Doc)
			}
		}
	}
	b.f("%s%s", tablesEnd, after)
	return out.File(protocolPage, b.Bytes())
}

// constant writes a number as the page has it: sizes in KiB and MiB, what is no size in hexadecimal.
func constant(c api.WireConst) string {
	switch v := c.Value; {
	case c.Name == "first_op" || c.Name == "frame_magic":
		return fmt.Sprintf("%#x", v)
	case v >= 1<<20 && v%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", v>>20)
	default:
		return fmt.Sprint(v)
	}
}
