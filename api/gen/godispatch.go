package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// emitDispatch writes the table by which the server carries out generic calls.
func emitDispatch(spec *api.Spec, out *Output) error {
	g := &dispatchGen{lib: spec.CUDA}
	table := &buffer{}
	table.f("package dispatch\n\nimport \"scuda.dev/scuda/api/cuda\"\n\nvar methods = [...]*function{\n")
	for _, fn := range g.lib.Funcs {
		if fn.PTSZ || !fn.Generic || fn.Op == 0 {
			continue
		}
		text, err := g.function(fn)
		if err != nil {
			return fmt.Errorf("%s: %w", fn.Name, err)
		}
		table.f("cuda.Op%s: %s,\n", api.GoName(fn.Name), text)
	}
	table.f("}\n\n")
	g.members()
	table.Write(g.tables.Bytes())
	return out.GoFile("server/dispatch/zz_table_gen.go", table.Bytes())
}

type dispatchGen struct {
	lib    *api.Library
	tables buffer
	known  map[string]bool
}

// fields is a literal of a structure; those that are zero are left out.
type fields []string

func (f *fields) add(name, value string) {
	if value != "" && value != "0" && value != "false" {
		*f = append(*f, name+": "+value)
	}
}

func (f *fields) number(name string, value int) { f.add(name, strconv.Itoa(value)) }
func (f *fields) flag(name string, value bool)  { f.add(name, strconv.FormatBool(value)) }

func (f fields) String() string { return "{" + strings.Join(f, ", ") + "}" }

func (g *dispatchGen) function(fn *api.Func) (string, error) {
	async := g.async(fn)
	if n := len(fn.Params); n > maxWords || async != nil && n == maxWords {
		return "", fmt.Errorf("%d parameters; the dispatch has room for %d words", n, maxWords)
	}
	var params []string
	for i := range fn.Params {
		text, err := g.param(fn, i)
		if err != nil {
			return "", err
		}
		params = append(params, text)
	}
	var f fields
	if len(params) > 0 {
		f.add("params", "[]param{"+strings.Join(params, ", ")+"}")
	}
	f.flag("words", !slices.ContainsFunc(fn.Params, func(p api.Param) bool {
		return p.Dir != api.Value || p.Struct || p.Delete || needed(p)
	}))
	f.flag("outs", fn.OutsOnError)
	if async != nil {
		f.add("async", "cuda.Op"+api.GoName(async.Name))
		f.flag("waits", fn.Class != api.Async)
	}
	return f.String(), nil
}

var directions = map[api.Dir]string{api.Value: "", api.In: "dirIn", api.Out: "dirOut", api.InOut: "dirInOut",
	api.Str: "dirStr", api.New: "dirNew", api.Ret: "dirRet", api.Null: "dirNull", api.Opaque: "dirOpaque"}

func (g *dispatchGen) param(fn *api.Func, i int) (string, error) {
	p := fn.Params[i]
	dir, ok := directions[p.Dir]
	if !ok || p.Size >= 1<<16 {
		return "", fmt.Errorf("%s: %d bytes that travel in a way that the dispatch does not know", p.Name, p.Size)
	}
	var f fields
	f.add("dir", dir)
	elements := p.Dir == api.In || p.Dir == api.InOut || p.Dir == api.Out || p.Dir == api.Ret
	if elements || p.Dir == api.Value && (p.Struct || p.Size < 8) {
		f.number("size", p.Size)
	}
	if elements {
		g.count(fn, p, &f)
	}
	f.flag("value", p.Dir == api.Value && p.Struct)
	f.flag("stream", p.Dir == api.Value && p.Stream)
	f.flag("deletes", p.Delete)
	f.flag("needed", needed(p))
	f.flag("enum", p.Enum && (p.Dir == api.Value || p.Dir == api.In))
	for _, k := range []struct{ name, of string }{{"handle", p.Handle}, {"object", p.Object}, {"token", p.Token}} {
		if k.of != "" {
			f.add(k.name, "cuda."+kindName(k.of))
		}
	}
	switch {
	case p.Object != "" && p.Dir == api.Value:
		f.add("unknown", "cuda."+cmp.Or(fn.Unknown, g.lib.Unknown[p.Object]))
	case p.Token != "" && p.Dir != api.Out:
		f.add("unknown", "cuda."+g.lib.NoToken[p.Token])
	}
	record := g.record(fn, p)
	if p.Dir == api.New || p.Dir == api.Ret {
		f.number("parent", g.parent(fn, p.Handle))
	} else if p.Object != "" && p.Dir == api.Out || record != "" && p.Dir != api.In && p.Dir != api.Value {
		f.number("parent", g.parent(fn, ""))
	}
	f.add("record", record)
	return f.String(), nil
}

// count says how many elements the driver will touch.
func (g *dispatchGen) count(fn *api.Func, p api.Param, f *fields) {
	name, minus, _ := strings.Cut(p.Count, "-")
	name = strings.TrimPrefix(name, "*")
	if isNumber(name) {
		f.add("count", name)
		return
	}
	f.number("by", 1+slices.IndexFunc(fn.Params, func(q api.Param) bool { return q.Name == name }))
	f.add("less", minus)
}

// needed says whether the server answers for a driver that would follow NULL.
func needed(p api.Param) bool {
	if p.Dir == api.In || p.Dir == api.InOut {
		return p.IfNull != api.NullOptional
	}
	return p.IfNull == api.NullCrashes
}

// record says what is in a parameter's structures; "" when that are mere numbers.
func (g *dispatchGen) record(fn *api.Func, p api.Param) string {
	var f fields
	f.add("patches", g.patchTable(p))
	f.add("words", g.wordTable(p))
	f.add("refuse", g.refuseTable(p))
	if p.Select != "" {
		f.number("by", 1+slices.IndexFunc(fn.Params, func(q api.Param) bool { return q.Name == p.Select }))
		f.add("known", g.knownTable(fn, p))
	}
	if f == nil {
		return ""
	}
	return "&record" + f.String()
}

// async is the form with a stream of a function that has none: the per-thread form of the function runs on the calling
// thread's stream, which is not the executor's.
func (g *dispatchGen) async(fn *api.Func) *api.Func {
	if g.lib.ByName[fn.Name+"_ptds"] == nil {
		return nil
	}
	stem := strings.TrimSuffix(fn.Name, "_v2")
	for _, name := range []string{stem + "Async_v2", stem + "Async"} {
		t := g.lib.ByName[name]
		if t != nil && len(t.Params) == len(fn.Params)+1 && t.Params[len(fn.Params)].CType == "CUstream" &&
			slices.EqualFunc(fn.Params, t.Params[:len(fn.Params)], func(a, b api.Param) bool { return a.CType == b.CType }) {
			return t
		}
	}
	return nil
}

// parent is 1 + the index of the handle below which the table enters what the call brings forth: the first handle
// parameter of another type, else one of the same type (the table then takes its owner); 0: none.
func (g *dispatchGen) parent(fn *api.Func, handle string) int {
	same := 0
	for i, p := range fn.Params {
		if p.Dir != api.Value || p.Handle == "" || p.Stream {
			continue
		}
		if p.Handle != handle {
			return i + 1
		}
		if same == 0 {
			same = i + 1
		}
	}
	return same
}

// patchTable gives the name of the table of a parameter's handles; devices are the client's business.
func (g *dispatchGen) patchTable(p api.Param) string { return g.patchList(p.Elem, p.Patch) }

func (g *dispatchGen) patchList(record string, all []api.Patch) string {
	patches := slices.DeleteFunc(slices.Clone(all), func(c api.Patch) bool { return c.Handle == "CUdevice" })
	if len(patches) == 0 {
		return ""
	}
	name := g.tableName("patches", record)
	if g.once(name) {
		g.tables.f("var %s = []patch{\n", name)
		for _, c := range patches {
			g.tables.f("{%d, cuda.%s, %s, %t},\n", c.Offset, kindName(c.Handle), whenLiteral("&when", c.When), c.Union)
		}
		g.tables.f("}\n\n")
	}
	return name
}

// wordTable gives the name of the table of what else is checked in a parameter's structures.
// Of what the driver writes, nothing is compared with the constants of enumerations.
func (g *dispatchGen) wordTable(p api.Param) string {
	if p.Dir == api.Out && !slices.ContainsFunc(p.Words, func(w api.Word) bool { return w.Is != api.Enum }) {
		return ""
	}
	return g.wordList(p.Elem, p.Words)
}

// wordList leaves addresses of device memory to the driver, but for the places of such that are unused.
func (g *dispatchGen) wordList(record string, all []api.Word) string {
	words := slices.DeleteFunc(slices.Clone(all), func(w api.Word) bool {
		return w.Is == api.Address && (w.When == nil || w.Union)
	})
	if len(words) == 0 {
		return ""
	}
	name := g.tableName("words", record)
	if g.once(name) {
		g.tables.f("var %s = []word{\n", name)
		for _, w := range words {
			kind, unknown := "cuda.KindNone", "0"
			if w.Is == api.Object {
				kind, unknown = "cuda."+kindName(w.Object), "cuda."+g.lib.Unknown[w.Object]
			}
			g.tables.f("{%d, %t, %t, %s, %s, %s, %t},\n", w.Offset, w.Is == api.Void, w.Is == api.Enum, kind, unknown,
				whenLiteral("&when", w.When), w.Union)
		}
		g.tables.f("}\n\n")
	}
	return name
}

func (g *dispatchGen) refuseTable(p api.Param) string { return g.refuseList(p.Elem, p.Refuse) }

func (g *dispatchGen) refuseList(record string, refuse []api.When) string {
	if len(refuse) == 0 {
		return ""
	}
	name := g.tableName("refuse", record)
	if g.once(name) {
		g.tables.f("var %s = []when{\n", name)
		for _, c := range refuse {
			g.tables.f("%s,\n", whenLiteral("", &c))
		}
		g.tables.f("}\n\n")
	}
	return name
}

func (g *dispatchGen) tableName(what, record string) string {
	t, _ := g.lib.Lookup(record)
	return what + api.GoTypeName(t.Underlying)
}

// members writes what unions hold, a map a structure.
func (g *dispatchGen) members() {
	var text buffer
	list := func(name string) string { return cmp.Or(name, "nil") }
	for i, m := range g.lib.Members {
		if i == 0 || g.lib.Members[i-1].Struct != m.Struct {
			text.f("%svar members%s = map[int32]member{\n", map[bool]string{true: "}\n\n"}[i > 0], api.GoTypeName(m.Struct))
		}
		text.f("int32(cuda.%s): {%d, %s, %s, %s},\n", m.Const, m.Size, list(g.patchList(m.Record, m.Patch)),
			list(g.wordList(m.Record, m.Words)), list(g.refuseList(m.Record, m.Refuse)))
	}
	if len(g.lib.Members) > 0 {
		text.f("}\n\n")
	}
	g.tables.Write(text.Bytes())
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// knownTable gives the name of the list of the values that say what a union holds: the driver would get the bytes of
// others as they are.
func (g *dispatchGen) knownTable(fn *api.Func, p api.Param) string {
	j := slices.IndexFunc(fn.Params, func(q api.Param) bool { return q.Name == p.Select })
	t, _ := g.lib.Lookup(fn.Params[j].CType)
	name := "known" + api.GoTypeName(t.Underlying)
	if g.once(name) {
		var list []string
		for _, v := range g.lib.EnumValues(t.Underlying) {
			list = append(list, strconv.FormatInt(v, 10))
		}
		g.tables.f("var %s = []int64{%s}\n\n", name, strings.Join(list, ", "))
	}
	return name
}

func (g *dispatchGen) once(name string) bool {
	if g.known == nil {
		g.known = map[string]bool{}
	}
	seen := g.known[name]
	g.known[name] = true
	return !seen
}

func whenLiteral(typ string, w *api.When) string {
	if w == nil {
		return "nil"
	}
	var values []string
	for _, v := range w.Values {
		values = append(values, strconv.FormatInt(v, 10))
	}
	return fmt.Sprintf("%s{%d, []int64{%s}}", typ, w.Offset, strings.Join(values, ", "))
}
