package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// emitDispatch writes the server's generic calls, some hundred functions a file.
func emitDispatch(spec *api.Spec, out *Output) error {
	lib := spec.CUDA
	table := &buffer{}
	table.f("package dispatch\n\nimport \"scuda.dev/scuda/api/cuda\"\n\nvar methods = [...]method{\n")
	g := &dispatchGen{lib: lib, body: &buffer{}}
	for _, fn := range lib.Funcs {
		if fn.PTSZ || !fn.Generic || fn.Op == 0 {
			continue
		}
		table.f("cuda.Op%s: call%s,\n", api.GoName(fn.Name), api.GoName(fn.Name))
		if err := g.function(fn); err != nil {
			return fmt.Errorf("%s: %w", fn.Name, err)
		}
	}
	table.f("}\n\n")
	g.members()
	table.Write(g.tables.Bytes())
	if err := out.GoFile("server/dispatch/zz_table_gen.go", table.Bytes()); err != nil {
		return err
	}
	b := &buffer{}
	b.f("package dispatch\n\nimport (\n%s\"unsafe\"\n\n\"scuda.dev/scuda/api/codec\"\n\"scuda.dev/scuda/api/cuda\"\n)\n",
		map[bool]string{true: "\"math\"\n"}[strings.Contains(g.body.String(), "math.")])
	b.Write(g.body.Bytes())
	return out.GoFile("server/dispatch/zz_calls_gen.go", b.Bytes())
}

type dispatchGen struct {
	lib    *api.Library
	body   *buffer
	tables buffer
	known  map[string]bool
}

func (g *dispatchGen) function(fn *api.Func) error {
	b := g.body
	name := api.GoName(fn.Name)
	b.f("\nfunc call%s(drv cuda.Driver, h Handles, r *codec.Reader, w *codec.Writer, perThread bool) cuda.CUresult {\n",
		name)
	for i, p := range fn.Params {
		g.decode(i, p)
	}
	b.f("if r.End() != nil {\nreturn 0\n}\n")
	needs := false
	for i, p := range fn.Params {
		if need := g.want(fn, p); need != "" {
			b.f("r.Need(n%d, %s)\n", i, need)
			needs = true
		}
	}
	if needs {
		b.f("if r.Err() != nil {\nreturn 0\n}\n")
	}
	g.selected(fn)
	for i, p := range fn.Params {
		g.absent(fn, i, p)
	}
	g.elements(fn, api.In, api.InOut)
	invalid := "cuda.CUDA_ERROR_INVALID_HANDLE"
	for i, p := range fn.Params {
		k := g.kind(p.Handle)
		switch {
		case p.Dir == api.New:
			b.f("if v%d == 0 {\nreturn cuda.CUDA_ERROR_INVALID_VALUE\n}\n", i)
		case p.Handle != "" && p.Dir == api.Value && p.Stream:
			b.f("real%d, ok := stream(h, v%d, perThread)\nif !ok {\nreturn %s\n}\n", i, i, invalid)
		case p.Handle != "" && p.Dir == api.Value:
			b.f("real%d, ok := real(h, cuda.%s, v%d)\nif !ok {\nreturn %s\n}\n", i, k, i, invalid)
		case p.Object != "" && p.Dir == api.Value:
			b.f("if !h.Holds(cuda.%s, v%d) {\nreturn cuda.%s\n}\n", g.kind(p.Object), i,
				cmp.Or(fn.Unknown, g.lib.Unknown[p.Object]))
		case p.Handle != "" && (p.Dir == api.In || p.Dir == api.InOut):
			b.f("if !array(h, cuda.%s, p%d, n%d, perThread) {\nreturn %s\n}\n", k, i, i, invalid)
		}
		if p.Dir != api.In && p.Dir != api.InOut && (p.Dir != api.Value || !p.Struct) {
			continue
		}
		n := fmt.Sprintf("n%d", i)
		if p.Dir == api.Value {
			n = "1"
		}
		if p.Token != "" {
			b.f("if !meant(h, cuda.%s, p%d, %s) {\nreturn cuda.%s\n}\n", g.kind(p.Token), i, n, g.lib.NoToken[p.Token])
		}
		if len(p.Refuse) > 0 {
			b.f("if refused(r, p%d, %s, %d, %s) {\nreturn 0\n}\n", i, n, p.Size, g.refuseTable(p))
		}
		if t := g.patchTable(p); t != "" {
			b.f("if !patchIn(h, p%d, %s, %d, %s, %s, perThread) {\nreturn %s\n}\n", i, n, p.Size, t, g.selector(fn, p), invalid)
		}
		if t := g.wordTable(p); t != "" {
			b.f("if result := checkWords(h, p%d, %s, %d, %s, %s); result != cuda.CUDA_SUCCESS {\nreturn result\n}\n", i, n,
				p.Size, t, g.selector(fn, p))
		}
	}
	reserved := false
	for i, p := range fn.Params {
		reserved = g.reserve(i, p) || reserved
	}
	if reserved {
		b.f("if r.Err() != nil {\nreturn 0\n}\n")
	}
	g.elements(fn, api.Out, api.Ret)
	g.call(fn)
	g.reply(fn)
	b.f("return result\n}\n")
	return nil
}

func (g *dispatchGen) decode(i int, p api.Param) {
	b := g.body
	switch p.Dir {
	case api.Value, api.Opaque:
		if p.Struct {
			b.f("p%d := r.Struct(%d)\n", i, p.Size)
			return
		}
		b.f("v%d := r.U64()\n", i)
	case api.In, api.InOut:
		b.f("p%d, n%d := r.Array(%d)\n", i, i, p.Size)
	case api.Str:
		b.f("p%d := r.Str()\n", i)
	case api.New:
		b.f("v%d := r.U64()\n", i)
	case api.Out, api.Ret:
		b.f("n%d := r.U64()\n", i)
	}
}

// elements makes numbers of elements of what says in arrays' places, too, that they hold nothing.
func (g *dispatchGen) elements(fn *api.Func, dirs ...api.Dir) {
	for i, p := range fn.Params {
		used := p.Handle != "" || p.Object != "" || p.Dir == api.InOut || g.patchTable(p) != "" ||
			p.Dir == api.In && (g.wordTable(p) != "" || len(p.Refuse) > 0)
		if slices.Contains(dirs, p.Dir) && p.Counted() && used {
			g.body.f("n%d = codec.Elements(n%d)\n", i, i)
		}
	}
}

// want is the number of elements that the driver will touch.
func (g *dispatchGen) want(fn *api.Func, p api.Param) string {
	if p.Dir != api.In && p.Dir != api.InOut && p.Dir != api.Out && p.Dir != api.Ret {
		return ""
	}
	name, minus, _ := strings.Cut(p.Count, "-")
	name, through := strings.CutPrefix(name, "*")
	if isNumber(name) {
		return name
	}
	j := slices.IndexFunc(fn.Params, func(q api.Param) bool { return q.Name == name })
	value := fmt.Sprintf("v%d", j)
	if through {
		value = fmt.Sprintf("count(p%d, %d)", j, fn.Params[j].Size)
	} else if fn.Params[j].Size == 4 {
		value = fmt.Sprintf("uint64(uint32(v%d))", j)
	}
	if minus != "" {
		value = fmt.Sprintf("less(%s, %s)", value, minus)
	}
	return value
}

func (g *dispatchGen) reserve(i int, p api.Param) bool {
	switch p.Dir {
	case api.Out, api.Ret:
		g.body.f("p%d := w.Out(r, n%d, %d)\n", i, i, p.Size)
	case api.InOut:
		g.body.f("out%d := w.Out(r, n%d, %d)\n", i, i, p.Size)
	default:
		return false
	}
	return true
}

func (g *dispatchGen) arg(i int, p api.Param) string {
	typ := p.GoType
	if rest, ok := strings.CutPrefix(typ, "*"); ok {
		typ = "*" + g.qualify(rest)
	} else {
		typ = g.qualify(typ)
	}
	switch p.Dir {
	case api.Value:
		switch {
		case p.Struct:
			return fmt.Sprintf("*(*%s)(p%d)", typ, i)
		case p.Handle != "":
			return fmt.Sprintf("%s(real%d)", typ, i)
		case p.Float && p.Size == 4:
			return fmt.Sprintf("%s(math.Float32frombits(uint32(v%d)))", typ, i)
		case p.Float:
			return fmt.Sprintf("%s(math.Float64frombits(v%d))", typ, i)
		}
		return fmt.Sprintf("%s(v%d)", typ, i)
	case api.Opaque:
		return fmt.Sprintf("opaque(v%d)", i)
	case api.Null:
		return "nil"
	}
	if typ == "unsafe.Pointer" {
		return fmt.Sprintf("p%d", i)
	}
	return fmt.Sprintf("(%s)(p%d)", typ, i)
}

// qualify puts the package before the names of api/cuda.
func (g *dispatchGen) qualify(typ string) string {
	if strings.Contains(typ, ".") || typ[0] >= 'a' && typ[0] <= 'z' {
		return typ
	}
	return "cuda." + typ
}

func (g *dispatchGen) call(fn *api.Func) {
	b := g.body
	var args []string
	for i, p := range fn.Params {
		if p.Dir == api.New {
			b.f("created := w.Word()\n")
			args = append(args, fmt.Sprintf("(*%s)(unsafe.Pointer(created))", g.qualify(strings.TrimPrefix(p.GoType, "*"))))
			continue
		}
		args = append(args, g.arg(i, p))
	}
	list := strings.Join(args, ", ")
	twin := g.twin(fn)
	if twin == nil {
		b.f("result := drv.%s(%s)\n", api.GoName(fn.Name), list)
		return
	}
	b.f("var result cuda.CUresult\nif perThread {\nown := cuda.CUstream(h.PerThread())\nresult = drv.%s(%s, own)\n",
		api.GoName(twin.Name), list)
	if fn.Class != api.Async {
		b.f("if result == cuda.CUDA_SUCCESS {\nresult = drv.CuStreamSynchronize(own)\n}\n")
	}
	b.f("} else {\nresult = drv.%s(%s)\n}\n", api.GoName(fn.Name), list)
}

// twin is the form with a stream of a function that has none: the per-thread form of the function runs on the calling
// thread's stream, which is not the executor's.
func (g *dispatchGen) twin(fn *api.Func) *api.Func {
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

func (g *dispatchGen) reply(fn *api.Func) {
	b := g.body
	outs := false
	for _, p := range fn.Params {
		outs = outs || p.Dir == api.Out || p.Dir == api.InOut || p.Dir == api.Ret
	}
	done := "if result != cuda.CUDA_SUCCESS {\n"
	if outs {
		done += "w.Reset()\n"
	}
	done += "return result\n}\n"
	if !fn.OutsOnError {
		b.f("%s", done)
	}
	for i, p := range fn.Params {
		k := g.kind(p.Handle)
		switch {
		case p.Delete && fn.OutsOnError, p.Dir == api.New && fn.OutsOnError:
			b.f("if result == cuda.CUDA_SUCCESS {\n")
		}
		switch {
		case p.Delete && p.Object != "":
			b.f("h.Take(cuda.%s, v%d)\n", g.kind(p.Object), i)
		case p.Object != "" && p.Dir == api.Out:
			b.f("given(h, cuda.%s, p%d, n%d, %s)\n", g.kind(p.Object), i, i, g.parent(fn, ""))
		case p.Delete:
			b.f("h.Delete(cuda.%s, v%d)\n", k, i)
		case p.Dir == api.New:
			b.f("create(h, r, cuda.%s, v%d, *created, %s)\n", k, i, g.parent(fn, p.Handle))
		}
		switch {
		case p.Delete && fn.OutsOnError, p.Dir == api.New && fn.OutsOnError:
			b.f("}\n")
		}
		full := "{\nw.Reset()\nreturn cuda.CUDA_ERROR_OUT_OF_MEMORY\n}\n"
		switch p.Dir {
		case api.InOut:
			b.f("codec.Copy(out%d, p%d, n%d, %d)\n", i, i, i, p.Size)
			if t := g.patchTable(p); t != "" {
				b.f("if !patchOut(h, out%d, n%d, %d, %s, %s, %s) %s", i, i, p.Size, t, g.selector(fn, p), g.parent(fn, ""), full)
			}
		case api.Out:
			if p.Token != "" {
				b.f("if !hidden(h, cuda.%s, p%d, n%d) %s", g.kind(p.Token), i, i, full)
			}
			if t := g.patchTable(p); t != "" {
				b.f("if !patchOut(h, p%d, n%d, %d, %s, %s, %s) %s", i, i, p.Size, t, g.selector(fn, p), g.parent(fn, ""), full)
			}
		case api.Ret:
			b.f("if !returned(h, cuda.%s, p%d, n%d, %s) %s", k, i, i, g.parent(fn, p.Handle), full)
		}
	}
}

// parent is the client handle below which the table enters what the call brings forth: the first handle parameter of
// another type, else one of the same type (the table then takes its owner).
func (g *dispatchGen) parent(fn *api.Func, handle string) string {
	same := "0"
	for i, p := range fn.Params {
		if p.Dir != api.Value || p.Handle == "" || p.Stream {
			continue
		}
		if p.Handle != handle {
			return fmt.Sprintf("v%d", i)
		}
		if same == "0" {
			same = fmt.Sprintf("v%d", i)
		}
	}
	return same
}

func (g *dispatchGen) kind(handle string) string {
	if handle == "" {
		return ""
	}
	return kindName(handle)
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
func (g *dispatchGen) wordTable(p api.Param) string { return g.wordList(p.Elem, p.Words) }

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
			g.tables.f("{%d, %t, %s, %s, %s, %t},\n", w.Offset, w.Is == api.Void, kind, unknown, whenLiteral("&when", w.When),
				w.Union)
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

// absent answers for a driver that would follow a NULL pointer.
func (g *dispatchGen) absent(fn *api.Func, i int, p api.Param) {
	input := p.Dir == api.In || p.Dir == api.InOut
	if input && p.IfNull == api.NullOptional || !input && p.IfNull != api.NullCrashes {
		return
	}
	if p.Dir == api.Value {
		g.body.f("if v%d == 0 {\nreturn cuda.CUDA_ERROR_INVALID_VALUE\n}\n", i)
		return
	}
	there := ""
	if want := g.want(fn, p); !isNumber(want) {
		there = " && " + want + " != 0"
	}
	g.body.f("if n%d == 0%s {\nreturn cuda.CUDA_ERROR_INVALID_VALUE\n}\n", i, there)
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// selected makes the values that say what unions hold ones that the description knows: the driver would get the bytes
// of others as they are.
func (g *dispatchGen) selected(fn *api.Func) {
	for _, p := range fn.Params {
		if p.Select == "" {
			continue
		}
		j := slices.IndexFunc(fn.Params, func(q api.Param) bool { return q.Name == p.Select })
		t, _ := g.lib.Lookup(fn.Params[j].CType)
		values := "known" + api.GoTypeName(t.Underlying)
		g.body.f("if !known(%s, v%d) {\nreturn cuda.CUDA_ERROR_INVALID_VALUE\n}\n", values, j)
		if g.once(values) {
			var list []string
			for _, v := range g.lib.EnumValues(t.Underlying) {
				list = append(list, strconv.FormatInt(v, 10))
			}
			g.tables.f("var %s = []int64{%s}\n\n", values, strings.Join(list, ", "))
		}
	}
}

// selector is the value that says what a parameter's union holds.
func (g *dispatchGen) selector(fn *api.Func, p api.Param) string {
	if p.Select == "" {
		return "0"
	}
	return fmt.Sprintf("int64(int32(v%d))",
		slices.IndexFunc(fn.Params, func(q api.Param) bool { return q.Name == p.Select }))
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
