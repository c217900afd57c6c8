package main

import (
	"fmt"
	"slices"

	"scuda.dev/scuda/api"
)

// What outputs are written in part ("writes" in api/*.semantics), and which are cleared at once ("clears").

// piecesName names the C list of a line about an output.
func piecesName(w api.Writes, i int) string { return fmt.Sprintf("pieces_%s_%d", w.Type, i) }

// emitPieces writes the lists of all lines.
func emitPieces(b *buffer, lib *api.Library) {
	for i, w := range lib.Writes {
		b.f("static const struct scuda_piece %s[] = {", piecesName(w, i))
		for _, p := range w.Pieces {
			each := fmt.Sprint(p.Each)
			if p.Text {
				each = "SCUDA_PIECE_TEXT"
			}
			b.f("{%d, %d, %s, %d}, ", p.From, p.To, each, p.CountAt)
		}
		b.f("{0, 0, 0, 0}};\n")
	}
}

// listOf gives the name of the list of a line.
func listOf(lib *api.Library, of api.Writes) string {
	return piecesName(of, slices.IndexFunc(lib.Writes, func(w api.Writes) bool {
		return w.Type == of.Type && w.Key == of.Key && slices.Equal(w.Values, of.Values)
	}))
}

// pieces gives the list of an output that is always written in the same parts; "" when it is written whole.
func pieces(lib *api.Library, p *api.Param) string {
	for _, of := range lib.WritesOf(p) {
		if len(of.Values) == 0 {
			return listOf(lib, of)
		}
	}
	return ""
}

// emitClears sets the outputs to 0 that the driver clears before it looks at anything else.
func emitClears(b *buffer, lib *api.Library, f *api.Func) error {
	list, err := lib.Clears(f)
	if err != nil {
		return err
	}
	for _, c := range list {
		cond := c.Param.Name
		if c.Room != "" {
			cond += " && " + c.Room
		}
		writes := lib.WritesOf(&c.Param)
		switch {
		case len(writes) == 0:
			b.f("  if (%s) memset(%s, 0, %d);\n", cond, c.Param.Name, c.Bytes)
		case len(writes) == 1 && writes[0].Key == "":
			for _, p := range writes[0].Pieces {
				b.f("  if (%s) memset((uint8_t *)%s + %d, 0, %d);\n", cond, c.Param.Name, p.From, p.To-p.From)
			}
		default:
			return fmt.Errorf("%s: which part of %s is cleared is not known", f.Name, c.Param.Name)
		}
	}
	return nil
}
