package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// The descriptions of generic calls that the program waits for (shim/front/base/forward.h).

var formDirections = map[api.Dir]string{api.In: "SCUDA_IN", api.Out: "SCUDA_OUT", api.InOut: "SCUDA_INOUT",
	api.Str: "SCUDA_STRING", api.New: "SCUDA_NEW", api.Ret: "SCUDA_RET", api.Null: "SCUDA_NULL",
	api.Opaque: "SCUDA_OPAQUE"}

// form writes the description of a function, and the function that makes words of its arguments.
func (c *cfront) form(b *buffer, f *api.Func, decl string) error {
	if len(f.Params) > maxWords {
		return fmt.Errorf("%d parameters; PARAMS_MAX of base/forward.c is %d", len(f.Params), maxWords)
	}
	var params, words []string
	for i, p := range f.Params {
		text, err := c.formParam(b, f, i)
		if err != nil {
			return err
		}
		word, err := c.word(p)
		if err != nil {
			return err
		}
		params, words = append(params, text), append(words, word)
	}
	list := "NULL"
	b.f("\nint32_t scuda_wire_%s(%s) {\n", f.Name, join(decl, "uint32_t how"))
	if len(params) > 0 {
		list = "params"
		b.f("  static const struct scuda_param params[] = {\n    %s\n  };\n", strings.Join(params, ",\n    "))
	} else {
		words = []string{"0"}
	}
	b.f("  static const struct scuda_form form = {%q, %s, OP_%s, %d, %d};\n", f.Name, list, f.Name, len(params),
		map[bool]int{true: 1}[f.OutsOnError])
	b.f("  return scuda_forward(&form, (const uint64_t[]){%s}, how);\n}\n", strings.Join(words, ", "))
	return nil
}

// cFields is fields in C.
type cFields struct{ fields }

func (f *cFields) set(name, value string) {
	if value != "" && value != "0" {
		f.fields = append(f.fields, "."+name+" = "+value)
	}
}

func (c *cfront) formParam(b *buffer, f *api.Func, i int) (string, error) {
	p := f.Params[i]
	var out cFields
	out.set("dir", formDirections[p.Dir])
	if p.Handle != "" {
		out.set("kind", "KIND_"+p.Handle)
	}
	selects, err := selector(c.lib, f, p)
	if err != nil {
		return "", err
	}
	out.set("flags", strings.Join(c.formFlags(f, i), " | "))
	out.set("select", strconv.Itoa(selects))
	out.set("size", strconv.Itoa(p.Size))
	if p.Dir == api.In || p.Dir == api.Out || p.Dir == api.InOut || p.Dir == api.Ret {
		name, less, _ := strings.Cut(strings.TrimPrefix(p.Count, "*"), "-")
		if p.Counted() {
			out.set("by", strconv.Itoa(1+slices.IndexFunc(f.Params, func(q api.Param) bool { return q.Name == name })))
			out.set("less", less)
		} else {
			out.set("count", strconv.Itoa(max(1, number(name))))
		}
		c.formPatches(b, f, p, &out)
		c.formChoices(b, f, p, &out)
	}
	if p.Dir == api.Str {
		out.set("count", "1")
	}
	return out.String(), nil
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// formFlags are what forward.h names.
func (c *cfront) formFlags(f *api.Func, i int) []string {
	p := f.Params[i]
	et, _ := c.lib.Lookup(p.Elem)
	value := p.Dir == api.Value
	var out []string
	for _, flag := range []struct {
		name string
		on   bool
	}{
		{"SCUDA_DEVICE", value && p.Device},
		{"SCUDA_ADDRESS", value && p.Elem == "CUdeviceptr"},
		{"SCUDA_NEEDED", c.recorded.fatal[[2]string{f.Name, p.Name}] || p.Dir == api.New || i == 0 && onlyOut(f)},
		{"SCUDA_MAYBE", value && p.Handle != "" && !p.Delete && p.Handle != "CUstream"},
		{"SCUDA_ENDS", p.Delete && p.Handle != ""},
		{"SCUDA_RECORD", value && p.Struct},
		{"SCUDA_SIGNED", value && p.Signed || !value && (et.Kind == "int" || et.Kind == "enum")},
		{"SCUDA_POINTER", strings.HasPrefix(p.Count, "*")},
		{"SCUDA_TEXT", p.Elem == "char" && (p.Dir == api.Out || p.Dir == api.InOut)},
	} {
		if flag.on {
			out = append(out, flag.name)
		}
	}
	return out
}

// onlyOut says whether the first parameter is the call's one result, which then cannot be NULL.
func onlyOut(f *api.Func) bool {
	for i, p := range f.Params {
		single := (p.Dir == api.Out || p.Dir == api.Ret) && (p.Count == "" || p.Count == "1")
		if (i == 0) != single {
			return false
		}
	}
	return len(f.Params) > 0
}

// selector is 1 + the index of the parameter that says what a parameter's union holds; 0: none.
func selector(lib *api.Library, f *api.Func, p api.Param) (int, error) {
	name := p.Select
	for _, w := range lib.WritesOf(&p) {
		if w.Key == "" || w.At >= 0 {
			continue
		}
		if name != "" && name != w.Key {
			return 0, fmt.Errorf("%s is selected by %s and by %s", p.Name, name, w.Key)
		}
		name = w.Key
	}
	if name == "" {
		return 0, nil
	}
	i := slices.IndexFunc(f.Params, func(q api.Param) bool { return q.Name == name })
	if i < 0 {
		return 0, fmt.Errorf("%s is selected by %s, which is no parameter", p.Name, name)
	}
	return i + 1, nil
}

// formPatches writes the list of the handles and ordinals in a parameter's elements.
func (c *cfront) formPatches(b *buffer, f *api.Func, p api.Param, out *cFields) {
	var list []string
	if p.Device {
		list = append(list, "{0, 0, {0, 0, NULL}}")
	}
	for _, patch := range p.Patch {
		kind, when := "0", "{0, 0, NULL}"
		if patch.Handle != "CUdevice" {
			kind = "KIND_" + patch.Handle
		}
		if patch.When != nil {
			when = cWhen(patch.When.Offset, patch.When.Values)
		}
		list = append(list, fmt.Sprintf("{%d, %s, %s}", patch.Offset, kind, when))
	}
	if list == nil {
		return
	}
	name := "patches_" + f.Name + "_" + p.Name
	b.f("static const struct scuda_patch %s[] = {%s};\n", name, strings.Join(list, ", "))
	out.set("patch", name)
	out.set("patches", strconv.Itoa(len(list)))
}

func cWhen(at int, values []int64) string {
	var list []string
	for _, v := range values {
		list = append(list, fmt.Sprintf("%du", uint32(v)))
	}
	return fmt.Sprintf("{%d, %d, (const uint32_t[]){%s}}", max(at, -1), len(values), strings.Join(list, ", "))
}

// formChoices writes the list of what the driver writes of a parameter's elements.
func (c *cfront) formChoices(b *buffer, f *api.Func, p api.Param, out *cFields) {
	var list []string
	last := cmp.Or(pieces(c.lib, &p), "NULL")
	for _, of := range c.lib.WritesOf(&p) {
		if len(of.Values) > 0 {
			list = append(list, fmt.Sprintf("{%s, %s}", cWhen(of.At, of.Values), listOf(c.lib, of)))
		}
	}
	if list == nil && last == "NULL" {
		return
	}
	name := "choices_" + f.Name + "_" + p.Name
	list = append(list, "{{0, 0, NULL}, "+last+"}")
	b.f("static const struct scuda_choice %s[] = {%s};\n", name, strings.Join(list, ", "))
	out.set("choices", name)
}

// hasDevices says whether elements hold device ordinals.
func hasDevices(p api.Param) bool {
	return p.Device || slices.ContainsFunc(p.Patch, func(patch api.Patch) bool { return patch.Handle == "CUdevice" })
}
