package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Writes says which bytes of an output NVIDIA's library writes where that is not all of its structure: the others stay
// the program's, which may be older than the structure and have no room for them.
type Writes struct {
	Type   string
	Key    string  // a field of the structure, or a parameter of the function; "": always
	At     int     // offset of the field; -1: a parameter
	Values []int64 // of the key
	Pieces []Piece
}

// Piece is a part of a structure.
type Piece struct {
	From, To int
	Text     bool // up to its NUL
	Each     int  // not 0: so many bytes for each of the elements that the word at CountAt counts, as far as To
	CountAt  int
}

// Cleared is an output that a function sets to 0 before it looks at anything else, so also where it fails.
type Cleared struct {
	Param Param
	Bytes int
	Room  string // the parameter that must not be 0, "": none
}

// parseWrites reads "writes TYPE [KEY=CONST[,CONST]] PIECE[,PIECE]"; a piece is FROM-TO, FROM-TO:text, or
// FROM-TO:EACH*COUNT; "nothing" in their place: the call leaves the structure alone.
func parseWrites(f []string) (Writes, []string, error) {
	w := Writes{At: -1}
	var consts []string
	if len(f) == 4 {
		key, values, ok := strings.Cut(f[2], "=")
		if !ok {
			return w, nil, fmt.Errorf("want: writes TYPE [KEY=CONST[,CONST]] PIECE[,PIECE]")
		}
		w.Key, consts = key, strings.Split(values, ",")
		f = append(f[:2:2], f[3])
	}
	if len(f) != 3 {
		return w, nil, fmt.Errorf("want: writes TYPE [KEY=CONST[,CONST]] PIECE[,PIECE]")
	}
	w.Type = f[1]
	if f[2] == "nothing" {
		return w, consts, nil
	}
	for text := range strings.SplitSeq(f[2], ",") {
		span, kind, _ := strings.Cut(text, ":")
		from, to, ok := strings.Cut(span, "-")
		p := Piece{Text: kind == "text"}
		var err1, err2 error
		p.From, err1 = strconv.Atoi(from)
		p.To, err2 = strconv.Atoi(to)
		if kind != "" && !p.Text {
			if n, _ := fmt.Sscanf(kind, "%d*%d", &p.Each, &p.CountAt); n != 2 || p.Each <= 0 {
				ok = false
			}
		}
		if !ok || err1 != nil || err2 != nil || p.From < 0 || p.To <= p.From {
			return w, nil, fmt.Errorf("%q is no piece: want FROM-TO, FROM-TO:text or FROM-TO:EACH*COUNT", text)
		}
		w.Pieces = append(w.Pieces, p)
	}
	return w, consts, nil
}

// resolveWrites finds types, fields and constants.
func (s *semantics) resolveWrites(lib *Library) error {
	for _, line := range s.writes {
		w, consts, err := parseWrites(line)
		if err != nil {
			return &InputError{s.file, strings.Join(line, " "), err.Error()}
		}
		fail := func(why string) error { return &InputError{s.file, strings.Join(line, " "), why} }
		t, ok := lib.Lookup(w.Type)
		if !ok || t.Kind != "struct" {
			return fail("is no structure")
		}
		if n := len(w.Pieces); n > 0 && w.Pieces[n-1].To > t.Size {
			return fail(fmt.Sprintf("ends behind the structure's %d bytes", t.Size))
		}
		for _, f := range lib.Struct(t.Underlying).Fields {
			if f.Name == w.Key {
				w.At = f.Offset
			}
		}
		for _, name := range consts {
			found := false
			for _, values := range lib.Enums {
				if v, ok := values[name]; ok && !found {
					w.Values, found = append(w.Values, v), true
				}
			}
			if !found {
				return fail(name + " is no constant")
			}
		}
		lib.Writes = append(lib.Writes, w)
	}
	return nil
}

// WritesOf gives the lines about an output.
func (lib *Library) WritesOf(p *Param) (out []Writes) {
	t, ok := lib.Lookup(p.Elem)
	if p.Dir != Out || !ok {
		return nil
	}
	for _, w := range lib.Writes {
		if of, _ := lib.Lookup(w.Type); of.Underlying == t.Underlying {
			out = append(out, w)
		}
	}
	return out
}

// Clears lists the outputs that the flag clears, or clears=PARAM[,PARAM], speaks of.
func (lib *Library) Clears(f *Func) (out []Cleared, err error) {
	list, ok := f.FlagValue(FlagClears)
	if !ok {
		return nil, nil
	}
	only := list != ""
	names := strings.Split(list, ",")
	for _, p := range f.Params {
		named := only && slices.Contains(names, p.Name)
		output := p.Dir == Out || p.Dir == New || p.Dir == Ret || p.Dir == InOut && named
		if !output || only && !named {
			continue
		}
		c := Cleared{Param: p, Bytes: p.Size}
		switch {
		case p.Elem == "char":
			c.Bytes, c.Room = 1, p.Count
		case p.Count != "1":
			return nil, fmt.Errorf("%s: only single outputs and texts are cleared, not %s", f.Name, p.Name)
		}
		out = append(out, c)
	}
	if out == nil || only && len(out) != len(names) {
		return nil, fmt.Errorf("%s: %s names what is no output", f.Name, FlagClears)
	}
	return out, nil
}
