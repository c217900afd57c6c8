package api

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// row is one function's line in a .semantics file.
type row struct {
	line   int
	class  Class
	reason string
	answer string // of a refused function
	params map[string]paramRow
	flags  []string
}

type paramRow struct {
	dir    Dir
	delete bool
	count  string
	null   IfNull
}

// condition is a "when" or "refuse" line.
type condition struct {
	line          int
	record, field string
	consts        []string
	path          string
}

// semantics is a parsed .semantics file.
type semantics struct {
	file         string
	reasons      map[string]*reason
	whens        []condition
	refuses      []condition
	pointers     map[string]Is     // of pointers in structures, by "STRUCT.path"
	unknown      map[string]string // of types of objects: the answer
	tokens       map[string]string // of types that tokens stand for: the answer to what is none
	rows         map[string]row
	pointersUsed map[string]bool
	members      []Member
	groups       []group
	absent       []absent
	parts        []part
	writes       [][]string // lines, see Writes
}

// group is a "group" line.
type group struct {
	line     int
	name     string
	prefixes []string
}

// reason is a "reason" line.
type reason struct {
	line int
	text string
	used bool
}

// use gives the text for a row.
func (r *reason) use() string {
	r.used = true
	return r.text
}

// absent is one attribute of an "absent" line.
type absent struct {
	line int
	Absent
}

// part is a "part" line.
type part struct {
	line int
	Part
}

// fail is an error about a line that could be parsed.
func (s *semantics) fail(line int, name, why string) error {
	return &InputError{s.file, "line " + strconv.Itoa(line) + ": " + name, why}
}

var classNames = map[string]Class{
	"missing": Missing, "unsupported": Unsupported, "refused": Refused,
	"local": Local, "async": Async, "sync": Sync, "hand": Hand}

// String is the class as it is written in a .semantics file.
func (c Class) String() string {
	for name, v := range classNames {
		if v == c {
			return name
		}
	}
	return "class " + strconv.Itoa(int(c))
}

var dirNames = map[string]Dir{
	"value": Value, "in": In, "out": Out, "inout": InOut, "str": Str,
	"new": New, "ret": Ret, "null": Null, "opaque": Opaque}

// String is the direction as it is written in a .semantics file.
func (d Dir) String() string {
	for name, v := range dirNames {
		if v == d {
			return name
		}
	}
	return "dir " + strconv.Itoa(int(d))
}

var paramPattern = regexp.MustCompile(`^(\w+):([a-z]+)(?:\[(\*?\w+(?:-[12])?)\])?([?!]?)$`)

func parseSemantics(file, text string) (*semantics, error) {
	s := &semantics{file: file, reasons: map[string]*reason{}, pointers: map[string]Is{}, pointersUsed: map[string]bool{},
		unknown: map[string]string{}, tokens: map[string]string{}, rows: map[string]row{}}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if err := s.parseLine(i+1, f); err != nil {
			return nil, &InputError{file, "line " + strconv.Itoa(i+1), err.Error()}
		}
	}
	return s, nil
}

func (s *semantics) parseLine(line int, f []string) error {
	switch f[0] {
	case "reason":
		if len(f) < 3 || s.reasons[f[1]] != nil {
			return fmt.Errorf("want: reason KEY TEXT, each key once")
		}
		s.reasons[f[1]] = &reason{line: line, text: strings.Join(f[2:], " ")}
		return nil
	case "when":
		if len(f) != 5 {
			return fmt.Errorf("want: when STRUCT FIELD CONST[,CONST] PATH")
		}
		s.whens = append(s.whens, condition{line, f[1], f[2], strings.Split(f[3], ","), f[4]})
		return nil
	case "refuse":
		if len(f) != 4 {
			return fmt.Errorf("want: refuse STRUCT FIELD CONST[,CONST]")
		}
		s.refuses = append(s.refuses, condition{line, f[1], f[2], strings.Split(f[3], ","), ""})
		return nil
	case "member":
		if len(f) != 4 {
			return fmt.Errorf("want: member STRUCT CONST RECORD")
		}
		s.members = append(s.members, Member{Struct: f[1], Const: f[2], Record: f[3]})
		return nil
	case "group":
		if len(f) < 3 || slices.ContainsFunc(s.groups, func(g group) bool { return g.name == f[1] }) {
			return fmt.Errorf("want: group NAME PREFIX…, each name once")
		}
		s.groups = append(s.groups, group{line, f[1], f[2:]})
		return nil
	case "absent":
		if len(f) < 3 || s.reasons[f[1]] == nil {
			return fmt.Errorf("want: absent KEY ATTRIBUTE…, with the key of a reason above")
		}
		for _, name := range f[2:] {
			s.absent = append(s.absent, absent{line, Absent{Name: "CU_DEVICE_ATTRIBUTE_" + name, Reason: s.reasons[f[1]].use()}})
		}
		return nil
	case "part":
		if len(f) < 4 || slices.ContainsFunc(s.parts, func(p part) bool { return p.Key == f[1] }) {
			return fmt.Errorf("want: part KEY FUNCTION[,FUNCTION…] TEXT, each key once")
		}
		p := Part{Key: f[1], Funcs: strings.Split(f[2], ","), Text: strings.Join(f[3:], " ")}
		s.parts = append(s.parts, part{line, p})
		return nil
	case "writes":
		s.writes = append(s.writes, f)
		return nil
	case "address", "void":
		if len(f) != 2 {
			return fmt.Errorf("want: %s STRUCT.PATH", f[0])
		}
		s.pointers[f[1]] = map[string]Is{"address": Address, "void": Void}[f[0]]
		return nil
	case "token":
		if len(f) != 3 || s.tokens[f[1]] != "" {
			return fmt.Errorf("want: token TYPE RESULT, each type once")
		}
		s.tokens[f[1]] = f[2]
		return nil
	case "object":
		if len(f) != 3 || s.unknown[f[1]] != "" {
			return fmt.Errorf("want: object TYPE RESULT, each type once")
		}
		s.unknown[f[1]] = f[2]
		return nil
	}
	if len(f) < 2 {
		return fmt.Errorf("want: NAME CLASS …")
	}
	if _, twice := s.rows[f[0]]; twice {
		return fmt.Errorf("%s has two rows", f[0])
	}
	name, key, _ := strings.Cut(f[1], ":")
	class, ok := classNames[name]
	if !ok {
		return fmt.Errorf("unknown class %q", f[1])
	}
	r := row{line: line, class: class, params: map[string]paramRow{}}
	rest := f[2:]
	if class == Refused {
		if len(rest) == 0 {
			return fmt.Errorf("want: NAME refused:KEY RESULT [FLAG …]")
		}
		r.answer, rest = rest[0], rest[1:]
	}
	if class == Missing || class == Unsupported || class == Refused {
		if key == "" {
			r.reason, rest = strings.Join(rest, " "), nil
		} else if why := s.reasons[key]; why != nil {
			r.reason = why.use()
		} else {
			return fmt.Errorf("unknown reason %q", key)
		}
	}
	for _, word := range rest {
		if !strings.Contains(word, ":") {
			r.flags = append(r.flags, word)
			continue
		}
		m := paramPattern.FindStringSubmatch(word)
		if m == nil {
			return fmt.Errorf("want: PARAM:DIR[COUNT], got %q", word)
		}
		p := r.params[m[1]]
		if m[2] == "delete" {
			p.delete = true
		} else if p.dir, ok = dirNames[m[2]]; !ok {
			return fmt.Errorf("unknown direction %q", m[2])
		}
		p.count, p.null = m[3], map[string]IfNull{"?": NullOptional, "!": NullCrashes}[m[4]]
		r.params[m[1]] = p
	}
	s.rows[f[0]] = r
	return nil
}

// OtherGroup is the group of what no group line speaks of.
const OtherGroup = "other"

// groupOf finds the group with the longest prefix of name.
func (s *semantics) groupOf(name string) string {
	found, length := OtherGroup, 0
	for _, g := range s.groups {
		for _, p := range g.prefixes {
			if len(p) > length && strings.HasPrefix(name, p) {
				found, length = g.name, len(p)
			}
		}
	}
	return found
}

// apply gives every function of lib its row and resolves the parameters.
func (s *semantics) apply(lib *Library, lf libraryFiles) error {
	b := &binder{sem: s, lib: lib, lf: lf}
	if err := b.objects(); err != nil {
		return &InputError{s.file, "object", err.Error()}
	}
	if err := b.tokens(); err != nil {
		return &InputError{s.file, "token", err.Error()}
	}
	for _, fn := range lib.Funcs {
		if fn.PTSZ {
			continue
		}
		r, ok := s.rows[fn.Name]
		if !ok {
			return &InputError{s.file, fn.Name, "has no row"}
		}
		fn.Class, fn.Reason, fn.Answer, fn.Group = r.class, r.reason, r.answer, s.groupOf(fn.Name)
		if _, ok := lib.Enums["cudaError_enum"][r.answer]; fn.Class == Refused && !ok {
			return s.fail(r.line, fn.Name, "answers "+r.answer+", which is no CUresult")
		}
		if err := b.function(fn, r); err != nil {
			return s.fail(r.line, fn.Name, err.Error())
		}
		if err := lib.checkMemory(fn); err != nil {
			return s.fail(r.line, fn.Name, err.Error())
		}
		if fn.Class == Async || fn.Class == Sync || fn.Class == Hand {
			fn.Op = fn.number
		}
	}
	for name, r := range s.rows {
		if fn := lib.ByName[name]; fn == nil || fn.PTSZ {
			return s.fail(r.line, name, "has a row but is no base function")
		}
	}
	if err := s.checkKeys(b); err != nil {
		return err
	}
	for _, a := range s.absent {
		v, ok := lib.Enums["CUdevice_attribute_enum"][a.Name]
		if !ok {
			return s.fail(a.line, a.Name, "is no attribute of devices")
		}
		a.Value = int(v)
		lib.Absent = append(lib.Absent, a.Absent)
	}
	for _, p := range s.parts {
		for _, name := range p.Funcs {
			if fn := lib.ByName[name]; fn == nil || fn.PTSZ || fn.Class <= Refused {
				return s.fail(p.line, "part "+p.Key, name+" is no base function that works")
			}
		}
		lib.Parts = append(lib.Parts, p.Part)
	}
	if err := b.members(); err != nil {
		return err
	}
	if err := s.resolveWrites(lib); err != nil {
		return err
	}
	for name, is := range s.pointers {
		if !s.pointersUsed[name] {
			return &InputError{s.file, is.String() + " " + name, "is used by no forwarded function"}
		}
	}
	for _, fn := range lib.Funcs {
		if !fn.PTSZ {
			continue
		}
		base := lib.ByName[fn.Base]
		if base == nil {
			return &InputError{lf.exports, fn.Name, "its base is not exported"}
		}
		if err := sameShape(base, fn); err != nil {
			return &InputError{lf.facts, fn.Name, err.Error()}
		}
		name, params := fn.Name, slices.Clone(base.Params)
		*fn = *base
		fn.Name, fn.Base, fn.PTSZ, fn.Params = name, base.Name, true, params
	}
	return nil
}

// checkKeys refuses reasons that no row gives, and conditions on fields or values that there are not.
func (s *semantics) checkKeys(b *binder) error {
	for key, r := range s.reasons {
		if !r.used {
			return s.fail(r.line, "reason "+key, "is no row's")
		}
	}
	for _, c := range slices.Concat(s.whens, s.refuses) {
		if w := b.condition(c); w.Offset < 0 && c.field != selected || len(w.Values) != len(c.consts) {
			return s.fail(c.line, c.record+"."+c.field, "is no field, or one of "+strings.Join(c.consts, ",")+" is no constant")
		}
	}
	return nil
}

// checkGroups refuses a group's prefix with which neither a function's name nor one of the operations in wire.spec
// begins.
func (s *semantics) checkGroups(lib *Library, wire []WireStruct) error {
	for _, g := range s.groups {
		for _, prefix := range g.prefixes {
			if !slices.ContainsFunc(lib.Funcs, func(fn *Func) bool { return strings.HasPrefix(fn.Name, prefix) }) &&
				!slices.ContainsFunc(wire, func(w WireStruct) bool { return w.Op != 0 && strings.HasPrefix(w.Name, prefix) }) {
				return s.fail(g.line, "group "+g.name, "nothing has a name that begins with "+prefix)
			}
		}
	}
	return nil
}
