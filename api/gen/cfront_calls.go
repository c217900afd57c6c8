package main

import (
	"fmt"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// calls writes the generic encodings: for each function one that checks handles, writes the command and reads the
// reply.
func (c *cfront) calls(out *Output) error {
	b := &buffer{}
	b.f("#include \"base/base.h\"\n\n#include <stdio.h>\n\nenum { ELEMENTS_MAX = 1 << 20 };\n")
	emitPieces(b, c.lib)
	for _, f := range c.lib.Funcs {
		if f.Base != "" || !f.Generic || f.NoProto {
			continue
		}
		decl, _, err := c.params(f)
		if err != nil {
			return err
		}
		w := &callWriter{cfront: c, f: f, b: b}
		b.f("\nint32_t scuda_wire_%s(%s) {\n", f.Name, join(decl, "uint32_t how"))
		w.checks()
		w.request()
		w.send()
		b.f("}\n")
		if w.err != nil {
			return fmt.Errorf("%s: %w", f.Name, w.err)
		}
	}
	return out.CFile("shim/front/gen/calls_gen.c", b.Bytes())
}

type callWriter struct {
	*cfront
	f   *api.Func
	b   *buffer
	err error
}

func (w *callWriter) outs() bool {
	for _, p := range w.f.Params {
		switch p.Dir {
		case api.Out, api.InOut, api.Ret:
			return true
		}
	}
	return false
}

// count gives the expression of a parameter's element count when its pointer is not NULL.
func (w *callWriter) count(p api.Param) string {
	text := p.Count
	if text == "" {
		return "1"
	}
	if text[0] >= '0' && text[0] <= '9' {
		return text
	}
	if name, ok := strings.CutPrefix(text, "*"); ok {
		return fmt.Sprintf("(%s ? (uint64_t)*%s : 0)", name, name)
	}
	minus := "0"
	if name, n, ok := strings.Cut(text, "-"); ok {
		text, minus = name, n
	}
	return fmt.Sprintf("(%s > %s ? (uint64_t)%s - %s : 0)", text, minus, text, minus)
}

// onlyOut says whether the first parameter is the call's one result, which then cannot be NULL.
func (w *callWriter) onlyOut() bool {
	for i, p := range w.f.Params {
		single := (p.Dir == api.Out || p.Dir == api.Ret) && w.count(p) == "1"
		if (i == 0) != single {
			return false
		}
	}
	return len(w.f.Params) > 0
}

// checks refuses at once what the driver would refuse at once.
func (w *callWriter) checks() {
	b := w.b
	b.f("  int32_t r;\n")
	if w.onlyOut() {
		b.f("  if (!%s) return CUDA_ERROR_INVALID_VALUE;\n", w.f.Params[0].Name)
	}
	for _, p := range w.f.Params {
		if w.recorded.fatal[[2]string{w.f.Name, p.Name}] {
			b.f("  if (!%s) return CUDA_ERROR_INVALID_VALUE;\n", p.Name)
		}
		switch {
		case p.Dir == api.Value && p.Handle != "":
			// NULL goes to the driver where an answer is awaited; streams have values of their own.
			cond := ""
			switch {
			case p.Delete && p.Handle == "CUstream":
				b.f("  if (%s <= 2) return CUDA_ERROR_INVALID_HANDLE;\n", p.Name)
			case !p.Delete && (w.f.Class != api.Async || p.Handle == "CUcontext") && p.Handle != "CUstream":
				cond = p.Name + " && "
			}
			b.f("  if (%s(r = scuda_check(%s, KIND_%s))) return r;\n", cond, p.Name, p.Handle)
		case p.Dir == api.Value && p.Device:
			b.f("  if (%s >= scuda_gpu_count) return CUDA_ERROR_INVALID_DEVICE;\n", p.Name)
		case p.Dir == api.New:
			b.f("  if (!%s) return CUDA_ERROR_INVALID_VALUE;\n", p.Name)
		}
	}
}

// request computes the payload's size and writes it.
func (w *callWriter) request() {
	b := w.b
	fixed := 0
	var size []string
	for _, p := range w.f.Params {
		switch p.Dir {
		case api.Null:
		case api.Value:
			if p.Struct {
				fixed += (p.Size + 7) &^ 7
			} else {
				fixed += 8
			}
		case api.Str:
			fixed += 8
			b.f("  uint64_t n_%s = %s ? strlen(%s) + 1 : 0;\n", p.Name, p.Name, p.Name)
			size = append(size, fmt.Sprintf("scuda_pad(n_%s)", p.Name))
		case api.New, api.Opaque:
			fixed += 8
		default:
			fixed += 8
			if w.f.Class == api.Async && p.Dir == api.In {
				b.f("  if (!%s && %s) return CUDA_ERROR_INVALID_VALUE;\n", p.Name, w.count(p))
			}
			b.f("  uint64_t n_%s = %s ? %s : 0;\n", p.Name, p.Name, w.count(p))
			b.f("  if (n_%s > ELEMENTS_MAX) return CUDA_ERROR_INVALID_VALUE;\n", p.Name)
			if p.Dir == api.In || p.Dir == api.InOut {
				size = append(size, fmt.Sprintf("scuda_pad(n_%s * %d)", p.Name, p.Size))
			}
		}
	}
	for _, p := range w.f.Params {
		if p.Dir == api.New {
			b.f("  uint64_t new_%s = scuda_slot_new(KIND_%s);\n  if (!new_%s) return CUDA_ERROR_OUT_OF_MEMORY;\n", p.Name,
				p.Handle, p.Name)
		}
	}
	if w.f.Class != api.Async {
		b.f("  how |= SCUDA_ANSWER;\n")
	} else if cond := w.doubtful(); cond != "" { // the driver's own error, at the call
		b.f("  if (%s) how |= SCUDA_ANSWER;\n", cond)
	}
	how := "how"
	if w.f.Class == api.Async && slices.ContainsFunc(w.f.Params, func(p api.Param) bool {
		return p.Dir == api.Value && p.Handle == "CUstream" && !p.Delete
	}) {
		how = "how | SCUDA_WORKS"
	}
	b.f("  struct scuda_cmd c;\n  r = scuda_begin(&c, OP_%s, %s, %s);\n", w.f.Name, how,
		strings.Join(append([]string{fmt.Sprint(fixed)}, size...), " + "))
	b.f("  if (r) {\n")
	w.freeNew("    ")
	b.f("    return r;\n  }\n  uint8_t *p = c.payload;\n")
	for _, p := range w.f.Params {
		w.put(p)
	}
	b.f("  (void)p;\n")
}

// doubtful is true for values that the driver may refuse: enumerators that the header does not have, reserved flags,
// negative devices, addresses that are not known.
func (w *callWriter) doubtful() string {
	var out []string
	for _, p := range w.f.Params {
		if p.Dir != api.Value {
			continue
		}
		low, high, isEnum := w.lib.EnumRange(p.CType)
		switch {
		case isEnum:
			out = append(out, fmt.Sprintf("(int64_t)%s < %d || (int64_t)%s > %d", p.Name, low, p.Name, high))
		case strings.EqualFold(p.Name, "flags"):
			out = append(out, fmt.Sprintf("%s > 0xff", p.Name))
		case p.Device:
			out = append(out, p.Name+" < 0")
		case p.CType == "CUdeviceptr" && !w.f.Pre:
			out = append(out, fmt.Sprintf("!scuda_on_device(%s, 1)", p.Name))
		}
	}
	return strings.Join(out, " || ")
}

func (w *callWriter) freeNew(indent string) {
	for _, p := range w.f.Params {
		if p.Dir == api.New {
			w.b.f("%sscuda_slot_free(new_%s);\n", indent, p.Name)
		}
	}
}

func (w *callWriter) put(p api.Param) {
	b := w.b
	switch p.Dir {
	case api.Null:
	case api.Value:
		switch {
		case p.Struct:
			b.f("  p = scuda_put_struct(p, &%s, %d);\n", p.Name, p.Size)
		case p.Float:
			b.f("  { uint64_t bits = 0; memcpy(&bits, &%s, sizeof %s); p = scuda_put64(p, bits); }\n", p.Name, p.Name)
		case p.Device:
			b.f("  p = scuda_put64(p, (uint64_t)(int64_t)scuda_to_server(%s));\n", p.Name)
		case strings.HasSuffix(p.CType, "*"):
			b.f("  p = scuda_put64(p, (uint64_t)(uintptr_t)%s);\n", p.Name)
		case p.Signed:
			b.f("  p = scuda_put64(p, (uint64_t)(int64_t)%s);\n", p.Name)
		default:
			ctype, err := w.ctype(p.CType)
			switch {
			case err != nil:
				w.err = err
			case ctype == "void *":
				b.f("  p = scuda_put64(p, (uint64_t)(uintptr_t)%s);\n", p.Name)
			case ctype == "int32_t": // an enumeration with unsigned values
				b.f("  p = scuda_put64(p, (uint32_t)%s);\n", p.Name)
			default:
				b.f("  p = scuda_put64(p, (uint64_t)%s);\n", p.Name)
			}
		}
	case api.Opaque:
		if t, err := w.ctype(p.CType); err == nil && strings.HasSuffix(t, "*") {
			b.f("  p = scuda_put64(p, (uint64_t)(uintptr_t)%s);\n", p.Name)
		} else {
			b.f("  p = scuda_put64(p, (uint64_t)%s);\n", p.Name)
		}
	case api.New:
		b.f("  p = scuda_put64(p, new_%s);\n", p.Name)
	case api.Str:
		b.f("  p = scuda_put_bytes(p, %s, n_%s, 1);\n", p.Name, p.Name)
	case api.In, api.InOut:
		if !w.translates(p) {
			put := "scuda_put_bytes"
			if p.Counted() {
				put = "scuda_put_array"
			}
			b.f("  p = %s(p, %s, n_%s, %d);\n", put, p.Name, p.Name, p.Size)
			return
		}
		b.f("  {\n    uint8_t *e = p + 8;\n    p = scuda_put_bytes(p, %s, n_%s, %d);\n", p.Name, p.Name, p.Size)
		b.f("    for (uint64_t i = 0; i < n_%s; i++, e += %d) {\n", p.Name, p.Size)
		w.devices(p, "scuda_to_server")
		b.f("    }\n  }\n")
	default:
		n := "n_" + p.Name
		if p.Counted() {
			n = fmt.Sprintf("scuda_room(%s, %s)", p.Name, n)
		}
		b.f("  p = scuda_put64(p, %s);\n", n)
	}
}

// translates says whether elements hold device ordinals.
func (w *callWriter) translates(p api.Param) bool {
	if p.Device {
		return true
	}
	for _, patch := range p.Patch {
		if patch.Handle == "CUdevice" {
			return true
		}
	}
	return false
}

// devices translates the ordinals in the element at e.
func (w *callWriter) devices(p api.Param, by string) {
	at := func(offset int, when *api.When) {
		cond := ""
		if when != nil {
			cond = "if (" + condition(p, when) + ") "
		}
		w.b.f("      %s{ int32_t v; memcpy(&v, e + %d, 4); v = %s(v); memcpy(e + %d, &v, 4); }\n", cond, offset, by, offset)
	}
	if p.Device {
		at(0, nil)
	}
	for _, patch := range p.Patch {
		if patch.Handle == "CUdevice" {
			at(patch.Offset, patch.When)
		}
	}
}

func condition(p api.Param, when *api.When) string {
	have := fmt.Sprintf("scuda_field(e + %d)", when.Offset)
	if when.Offset < 0 {
		have = "(uint32_t)" + p.Select
	}
	var terms []string
	for _, v := range when.Values {
		terms = append(terms, fmt.Sprintf("%s == %du", have, uint32(v)))
	}
	return strings.Join(terms, " || ")
}

// send sends the command and reads the reply.
func (w *callWriter) send() {
	b := w.b
	if !w.outs() {
		b.f("  r = %s;\n", map[bool]string{
			true: "scuda_send(&c)", false: "scuda_call(&c, NULL, 0, NULL)",
		}[w.f.Class == api.Async])
	} else {
		var size []string
		for _, p := range w.f.Params {
			if p.Dir == api.Out || p.Dir == api.InOut || p.Dir == api.Ret {
				size = append(size, fmt.Sprintf("8 + scuda_pad(n_%s * %d)", p.Name, p.Size))
			}
		}
		cond := "!r"
		if w.f.OutsOnError {
			cond = "!r || reply.at != reply.end"
		}
		b.f("  struct scuda_reply reply;\n  r = scuda_call_generic(&c, &reply, %s);\n  if (%s) {\n",
			strings.Join(size, " + "), cond)
		for _, p := range w.f.Params {
			w.get(p)
		}
		b.f("    if (reply.bad) r = scuda_bad_reply(\"%s\");\n  }\n  scuda_reply_done(&reply);\n", w.f.Name)
	}
	hasNew, hasDelete := false, false
	for _, p := range w.f.Params {
		hasNew = hasNew || p.Dir == api.New
		hasDelete = hasDelete || p.Delete && p.Handle != ""
	}
	if hasNew {
		b.f("  if (r) {\n")
		w.freeNew("    ")
		b.f("    return r;\n  }\n")
		for _, p := range w.f.Params {
			if p.Dir == api.New {
				b.f("  *%s = new_%s;\n", p.Name, p.Name)
			}
		}
	}
	if hasDelete {
		for _, p := range w.f.Params {
			if p.Delete && p.Handle != "" {
				b.f("  if (!r) scuda_slot_free(%s);\n", p.Name)
			}
		}
	}
	b.f("  return r;\n")
}

func (w *callWriter) get(p api.Param) {
	b := w.b
	switch p.Dir {
	case api.Out, api.InOut, api.Ret:
	default:
		return
	}
	kind := ""
	if p.Handle != "" {
		kind = p.Handle
	}
	get := fmt.Sprintf("scuda_get(&reply, %s, n_%s, %d)", p.Name, p.Name, p.Size)
	if list := pieces(w.lib, &p); list != "" {
		get = fmt.Sprintf("scuda_get_pieces(&reply, %s, n_%s, %d, %s)", p.Name, p.Name, p.Size, list)
	}
	if p.Elem == "char" {
		get = fmt.Sprintf("scuda_get_text(&reply, %s, n_%s)", p.Name, p.Name)
	}
	adopts := kind != ""
	for _, patch := range p.Patch {
		adopts = adopts || patch.Handle != "CUdevice"
	}
	if !adopts && !w.translates(p) {
		b.f("    %s;\n", get)
		return
	}
	b.f("    {\n      uint64_t n = %s;\n      uint8_t *e = (uint8_t *)%s;\n", get, p.Name)
	b.f("      for (uint64_t i = 0; i < n; i++, e += %d) {\n", p.Size)
	w.devices(p, "scuda_from_server")
	if kind != "" {
		b.f("      scuda_adopt(scuda_word(e), KIND_%s);\n", kind)
	}
	for _, patch := range p.Patch {
		if patch.Handle == "CUdevice" {
			continue
		}
		cond := ""
		if patch.When != nil {
			cond = "if (" + condition(p, patch.When) + ") "
		}
		b.f("      %sscuda_adopt(scuda_word(e + %d), KIND_%s);\n", cond, patch.Offset, patch.Handle)
	}
	b.f("      }\n    }\n")
}
