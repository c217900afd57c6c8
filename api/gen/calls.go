package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// The table of calls that e2e/programs/answers.c makes: one line a function, with an argument for each parameter.
// Arguments follow from the types; where they need meaning, api/*.calls say so.

func emitCalls(spec *api.Spec, out *Output) error {
	for _, l := range []struct {
		lib  *api.Library
		name string
	}{{spec.CUDA, "cuda"}, {spec.NVML, "nvml"}} {
		hand, err := readCalls(l.lib, filepath.Join(out.root, "api", l.name+".calls"))
		if err != nil {
			return err
		}
		var b buffer
		b.f("# %s\n# FUNCTION SKIPPED PARAMETER/KIND/WRITES/MARKS/ARGUMENT…\n", Notice)
		for _, f := range l.lib.Funcs {
			if f.Data || strings.HasPrefix(f.Name, "cudbg") { // the debugger's entry points
				continue
			}
			line, err := callLine(l.lib, f, hand)
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			b.WriteString(line + "\n")
		}
		if err := out.File("testdata/answers/"+l.name+".calls", b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// call is what a .calls file says of a function.
type call struct {
	args map[string]string
	skip []string
}

// readCalls reads lines "FUNCTION [PARAM=VALUE…] [PARAM~…] [!CASE…] [# why]".
func readCalls(lib *api.Library, path string) (map[string]*call, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]*call{}
	for i, line := range strings.Split(string(text), "\n") {
		line, why, _ := strings.Cut(line, "#")
		words := callWords(line)
		if len(words) == 0 {
			continue
		}
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: %s", path, i+1, fmt.Sprintf(format, args...))
		}
		f := lib.ByName[words[0]]
		if f == nil {
			return nil, fail("no function %s", words[0])
		}
		if out[f.Name] != nil {
			return nil, fail("%s has a line already", f.Name)
		}
		c := &call{args: map[string]string{}}
		out[f.Name] = c
		for _, w := range words[1:] {
			if name, ok := strings.CutPrefix(w, "!"); ok {
				if strings.TrimSpace(why) == "" {
					return nil, fail("say behind # why %s is left out", name)
				}
				c.skip = append(c.skip, name)
				continue
			}
			name, value, ok := strings.Cut(w, "=")
			if n, varies := strings.CutSuffix(w, "~"); varies && !ok {
				name, value = n+"~", ""
			}
			if !slices.ContainsFunc(callParams(lib, f), func(p api.Param) bool {
				return p.Name == strings.TrimSuffix(name, "~")
			}) {
				return nil, fail("%s has no parameter %s", f.Name, name)
			}
			c.args[name] = value
		}
	}
	return out, nil
}

// callWords splits at spaces outside of braces and quotes.
func callWords(line string) []string {
	var out []string
	var cur strings.Builder
	depth, quoted := 0, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case r == '{' && !quoted:
			depth++
		case r == '}' && !quoted:
			depth--
		}
		if r == ' ' && depth == 0 && !quoted {
			if cur.Len() > 0 {
				out = append(out, cur.String())
			}
			cur.Reset()
			continue
		}
		cur.WriteRune(r)
	}
	if cur.Len() > 0 {
		out = append(out, cur.String())
	}
	return out
}

func callParams(lib *api.Library, f *api.Func) []api.Param {
	if f.PTSZ {
		f = lib.ByName[f.Base]
	}
	if f.Alias != "" {
		f = lib.ByName[f.Alias]
	}
	return f.Params
}

func callLine(lib *api.Library, f *api.Func, hand map[string]*call) (string, error) {
	c := hand[f.Name]
	if c == nil && f.PTSZ {
		c = hand[f.Base]
	}
	if c == nil {
		c = &call{}
	}
	skip := slices.Clone(c.skip)
	if f.Flag(api.FlagDenied) { // what would change the machine is called with a wrong device only
		skip = append(skip, "right", "child")
	}
	params := callParams(lib, f)
	counts := map[string]bool{}
	for _, p := range params {
		if p.Dir == api.In || p.Dir == api.Out || p.Dir == api.InOut || p.Dir == api.Ret {
			counts[strings.TrimLeft(strings.TrimSuffix(strings.TrimSuffix(p.Count, "-1"), "-2"), "*")] = true
		}
	}
	var b strings.Builder
	for i, p := range params {
		kind, err := callKind(lib, &p, counts[p.Name])
		if err != nil {
			return "", err
		}
		if f.Flag(api.FlagDenied) && (i > 0 || kind != "H") {
			kind = "-"
		}
		token, ok := c.args[p.Name]
		if ok {
			token, err = callToken(lib, &p, token)
		} else {
			token, err = callDefault(lib, &p, kind, params)
			if f.Flag(api.FlagVersioned) && p.Struct && kind == "P" {
				token = callVersioned(lib, &p)
			}
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.Name, err)
		}
		shown := callShown(lib, &p)
		if _, varies := c.args[p.Name+"~"]; varies {
			shown = "~"
		}
		fmt.Fprintf(&b, " %s/%s/%s/%s/%s", p.Name, kind, shown, callMarks(lib, f, &p), token)
	}
	left := "-"
	if len(skip) > 0 {
		left = "," + strings.Join(skip, ",") + ","
	}
	return f.Name + " " + left + b.String(), nil
}

// callKind says which wrong values a parameter has: P pointer, H handle, h handle
// that the driver does not survive when it is destroyed, D device, A device address, S size, C count of an array, F
// flags, E enumerator, V another number, - none.
func callKind(lib *api.Library, p *api.Param, count bool) (string, error) {
	t, _ := lib.Lookup(p.CType)
	switch {
	case strings.HasSuffix(p.CType, "*"), t.Kind == "pointer", t.Kind == "func":
		return "P", nil
	case p.Handle == "CUstream", p.Handle == "CUarray":
		return "h", nil
	case p.Handle != "":
		return "H", nil
	case p.Device:
		return "D", nil
	case p.CType == "CUdeviceptr", p.CType == "CUtexObject", p.CType == "CUsurfObject",
		p.CType == "CUmemGenericAllocationHandle":
		return "A", nil
	case p.Float, p.Struct && p.Size > 8:
		return "-", nil
	case count:
		return "C", nil
	case p.CType == "size_t":
		return "S", nil
	case strings.EqualFold(p.Name, "flags"):
		return "F", nil
	case t.Kind == "enum":
		return "E", nil
	case t.Kind == "int" || t.Kind == "uint" || p.Struct:
		return "V", nil
	}
	return "", fmt.Errorf("%s: no kind for %s", p.Name, p.CType)
}

// callUnmade are handles of what is not supported.
var callUnmade = map[string]bool{"CUasyncCallbackHandle": true, "CUdevResourceDesc": true, "CUexternalMemory": true,
	"CUexternalSemaphore": true, "CUgraphicsResource": true,
	"CUgreenCtx": true, "CUlogsCallbackHandle": true, "nvmlComputeInstance_t": true, "nvmlGpuInstance_t": true,
	"nvmlSystemEventSet_t": true, "nvmlUnit_t": true}

func callMaker(handle string) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(handle, "CU"), "nvml"), "_t"))
}

func callDefault(lib *api.Library, p *api.Param, kind string, params []api.Param) (string, error) {
	t, _ := lib.Lookup(p.CType)
	switch {
	case callUnmade[p.Handle]:
		return "i0", nil
	case t.Kind == "func":
		return "mhostfunction", nil
	case p.Dir == api.Str:
		return "tnothing", nil
	case kind == "P" && p.Dir == api.In && p.Handle != "":
		return "b4096:0=m" + callMaker(p.Handle), nil
	case kind == "P" && p.Dir == api.InOut &&
		slices.ContainsFunc(params, func(of api.Param) bool { return of.Count == "*"+p.Name }):
		return "b4096:0=x08", nil // room for so many
	case kind == "P":
		return "b" + strconv.Itoa(max(4096, p.Size)), nil
	case kind == "C":
		for _, of := range params {
			if of.Count == p.Name && of.Dir == api.Out {
				return map[bool]string{true: "i96", false: "i4"}[of.Elem == "char"], nil
			}
		}
		return "i0", nil
	case strings.EqualFold(kind, "H") && p.Delete:
		return "mnew:" + callMaker(p.Handle), nil
	case strings.EqualFold(kind, "H"):
		return "m" + callMaker(p.Handle), nil
	case kind == "A":
		return "m" + map[string]string{
			"CUdeviceptr": "mem", "CUtexObject": "texobject", "CUsurfObject": "surfobject",
			"CUmemGenericAllocationHandle": "allocation",
		}[p.CType], nil
	case p.Float:
		return "f0", nil
	case p.Struct && p.Dir == api.Value && p.Size > 16:
		return "w" + strconv.Itoa((p.Size+7)/8), nil
	case p.Struct && p.Dir == api.Value && p.Size > 8 && kind != "-":
		return "", fmt.Errorf("a structure of %d bytes by value", p.Size)
	case kind == "S" || p.CType == "unsigned int" && strings.HasPrefix(p.Name, "byte"):
		return "i64", nil
	}
	return "i0", nil
}

var callVersion = regexp.MustCompile(`_v(\d+)_t$`)

// callVersioned is an NVML structure that says its size and version in its first word.
func callVersioned(lib *api.Library, p *api.Param) string {
	version := 1
	if t, ok := lib.Lookup(p.Elem); ok {
		if m := callVersion.FindStringSubmatch(t.Underlying); m != nil {
			version, _ = strconv.Atoi(m[1])
		}
	}
	word := binary.LittleEndian.AppendUint32(nil, uint32(p.Size|version<<24))
	return fmt.Sprintf("b%d:0=x%s", max(4096, p.Size), hex.EncodeToString(word))
}

// callToken turns what a .calls file says into the program's form: a number or constant, "text", {Field=value …},
// [value,value], out:N, null, or the name of a maker.
func callToken(lib *api.Library, p *api.Param, text string) (string, error) {
	switch {
	case text == "null":
		return "i0", nil
	case strings.HasPrefix(text, `"`):
		return "t" + strings.Trim(text, `"`), nil
	case strings.HasPrefix(text, "out:"):
		return "b" + text[4:], nil
	case strings.HasPrefix(text, "{"):
		var parts []string
		s := lib.Struct(p.Elem)
		if s == nil {
			return "", fmt.Errorf("%s is no structure", p.Elem)
		}
		for w := range strings.FieldsSeq(strings.Trim(text, "{}")) {
			path, value, ok := strings.Cut(w, "=")
			field, offset, err := callField(lib, s, path)
			if err != nil || !ok {
				return "", fmt.Errorf("%s: %w", w, err)
			}
			part, err := callPart(lib, value, callSize(lib, field))
			if err != nil {
				return "", err
			}
			parts = append(parts, fmt.Sprintf("%d=%s", offset, part))
		}
		return fmt.Sprintf("b%d:%s", max(4096, s.Size), strings.Join(parts, ",")), nil
	case strings.HasPrefix(text, "["):
		var parts []string
		size := max(p.Size, 1)
		for i, value := range strings.Split(strings.Trim(text, "[]"), ",") {
			part, err := callPart(lib, value, size)
			if err != nil {
				return "", err
			}
			parts = append(parts, fmt.Sprintf("%d=%s", i*size, part))
		}
		return "b4096:" + strings.Join(parts, ","), nil
	case p.Float:
		return "f" + text, nil
	case p.Struct && p.Size > 16 && !strings.HasSuffix(p.CType, "*"):
		return fmt.Sprintf("w%d:%s", (p.Size+7)/8, text), nil
	}
	if n, ok := callNumber(lib, text); ok {
		return "i" + strconv.FormatInt(n, 10), nil
	}
	return "m" + text, nil
}

// callNumber reads a number or constants joined by |.
func callNumber(lib *api.Library, text string) (int64, bool) {
	var sum int64
	for part := range strings.SplitSeq(text, "|") {
		n, err := strconv.ParseInt(part, 0, 64)
		if err != nil {
			found := false
			for _, values := range lib.Enums {
				if v, ok := values[part]; ok {
					n, found = v, true
				}
			}
			if !found {
				return 0, false
			}
		}
		sum |= n
	}
	return sum, true
}

func callPart(lib *api.Library, text string, size int) (string, error) {
	n, ok := callNumber(lib, text)
	if !ok {
		return "m" + text, nil
	}
	bytes := make([]byte, 8)
	for i := range bytes {
		bytes[i] = byte(n >> (8 * i))
	}
	if size > 8 || size < 1 {
		return "", fmt.Errorf("%s does not fit %d bytes", text, size)
	}
	return "x" + hex.EncodeToString(bytes[:size]), nil
}

func callSize(lib *api.Library, f *api.Field) int {
	t, _ := lib.Lookup(f.CType)
	return t.Size
}

// callField finds "a.b.c" in a structure.
func callField(lib *api.Library, s *api.Struct, path string) (*api.Field, int, error) {
	name, rest, more := strings.Cut(path, ".")
	name, index, indexed := strings.Cut(strings.TrimSuffix(name, "]"), "[")
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Name == "" && f.Sub != nil { // an unnamed union
			if found, offset, err := callField(lib, f.Sub, path); err == nil {
				return found, f.Offset + offset, nil
			}
		}
		if f.Name != name {
			continue
		}
		offset := f.Offset
		if indexed {
			n, err := strconv.Atoi(index)
			if err != nil {
				return nil, 0, err
			}
			offset += n * callSize(lib, f)
		}
		if !more {
			return f, offset, nil
		}
		sub := f.Sub
		if sub == nil {
			sub = lib.Struct(f.CType)
		}
		if sub == nil {
			return nil, 0, fmt.Errorf("%s is no structure", name)
		}
		found, below, err := callField(lib, sub, rest)
		return found, offset + below, err
	}
	return nil, 0, fmt.Errorf("%s has no field %s", s.Name, name)
}

// callPoints says whether there are addresses or handles in a structure, which are not the same each time.
func callPoints(lib *api.Library, s *api.Struct) bool {
	for _, f := range s.Fields {
		t, _ := lib.Lookup(f.CType)
		sub := f.Sub
		if sub == nil {
			sub = lib.Struct(f.CType)
		}
		switch {
		case t.Kind == "pointer", t.Kind == "handle", t.Kind == "func", f.CType == "CUdeviceptr",
			strings.HasSuffix(f.CType, "*"):
			return true
		case sub != nil && callPoints(lib, sub):
			return true
		}
	}
	return false
}

// callMarks says which bytes of a buffer the call may find full of marks: all that it writes only ("o"), those behind
// what it reads ("i"), or those behind it where another answer shows that it minds ("t": structures of numbers); with
// the bytes that it may read.
func callMarks(lib *api.Library, f *api.Func, p *api.Param) string {
	t, _ := lib.Lookup(p.Elem)
	size := max(p.Size, 1)
	if p.Count != "1" && p.Dir != api.InOut {
		size = 4096 // an array; those that are read have one element here
	}
	switch {
	case t.Kind == "func":
		return ""
	case p.Dir == api.Out, p.Dir == api.New, p.Dir == api.Ret:
		return "o" + strconv.Itoa(size)
	case p.Dir == api.InOut && f.Flag(api.FlagVersioned) && p.Struct && !callPoints(lib, lib.Struct(p.Elem)):
		return "t" + strconv.Itoa(size)
	case p.Dir == api.InOut:
		return "i" + strconv.Itoa(size)
	}
	return ""
}

// callShown says how to print what a call wrote.
func callShown(lib *api.Library, p *api.Param) string {
	if p.Dir != api.Out && p.Dir != api.InOut && p.Dir != api.New && p.Dir != api.Ret {
		return ""
	}
	t, _ := lib.Lookup(p.Elem)
	switch {
	case p.Handle != "", p.Elem == "CUdeviceptr", p.Elem == "void *", p.Elem == "CUmemGenericAllocationHandle",
		p.Elem == "CUtexObject", p.Elem == "CUsurfObject", t.Kind == "pointer":
		return "h"
	case p.Elem == "char":
		return "t"
	case p.Elem == "void", p.Count != "1" && !strings.HasPrefix(p.Count, "*"):
		return ""
	case p.Struct:
		if s := lib.Struct(p.Elem); s != nil && p.Dir == api.Out && p.Count == "1" && strings.HasPrefix(p.Elem, "CU") &&
			!callPoints(lib, s) {
			return "s" + strconv.Itoa(p.Size)
		}
		return ""
	case p.Float:
		return "f4"
	case t.Kind == "int" || t.Kind == "enum":
		return "i" + strconv.Itoa(t.Size)
	case t.Kind == "uint":
		return "u" + strconv.Itoa(t.Size)
	}
	return ""
}
