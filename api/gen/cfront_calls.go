package main

import (
	"fmt"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// calls writes the generic encodings: of what the program does not wait for, a function that checks handles and writes
// the command; of everything else a description (cfront_forms.go) for the interpreter in base/forward.c.
func (c *cfront) calls(out *Output) error {
	b := &buffer{}
	b.f("#include \"base/forward.h\"\n\nenum { ELEMENTS_MAX = 1 << 20 };\n")
	emitPieces(b, c.lib)
	for _, f := range c.lib.Funcs {
		if f.Base != "" || !f.Generic || f.NoProto {
			continue
		}
		decl, args, err := c.params(f)
		if err != nil {
			return err
		}
		if f.Class != api.Async {
			if err := c.form(b, f, decl); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			continue
		}
		w := &callWriter{cfront: c, f: f, b: b}
		names := namesOf(f)
		if len(names) == 0 {
			b.f("\nint32_t scuda_wire_%s(%s) {\n", f.Name, join(decl, "uint32_t how"))
		} else {
			b.f("\nstatic inline int32_t there_%s(%s) {\n", f.Name, join(decl, "uint32_t how"))
		}
		w.checks()
		w.request()
		w.send()
		b.f("}\n")
		if len(names) > 0 {
			b.f("int32_t scuda_wire_%s(%s) {\n", f.Name, join(decl, "uint32_t how"))
			b.f("  if (SCUDA_LIKELY(!scuda_several())) return there_%s(%s);\n", f.Name, join(args, "how"))
			b.f("  struct scuda_named n = {0};\n  struct scuda_visit v;\n")
			for _, name := range names {
				b.f("  %s;\n", name)
			}
			b.f("  int32_t r = scuda_visit_named(&v, &n, %q);\n  if (r) return r;\n", f.Name)
			b.f("  r = there_%s(%s);\n  scuda_visit_end(v);\n  return r;\n}\n", f.Name, join(args, "how"))
		}
		if w.err != nil {
			return fmt.Errorf("%s: %w", f.Name, w.err)
		}
	}
	return out.CFile("shim/front/gen/calls_gen.c", b.Bytes())
}

// namesOf says how to note whose arguments are: which of several servers a call is for (base/server.h).
func namesOf(f *api.Func) (names []string) {
	for _, p := range f.Params {
		switch {
		case p.Dir != api.Value:
		case p.Handle != "":
			names = append(names, fmt.Sprintf("scuda_name_object(&n, %s)", p.Name))
		case p.Device:
			names = append(names, fmt.Sprintf("scuda_name_device(&n, %s)", p.Name))
		case p.Elem == "CUdeviceptr":
			names = append(names, fmt.Sprintf("scuda_name_address(&n, %s)", p.Name))
		}
	}
	return names
}

type callWriter struct {
	*cfront
	f   *api.Func
	b   *buffer
	err error
}

// checks refuses at once what the driver would refuse at once.
func (w *callWriter) checks() {
	b := w.b
	b.f("  int32_t r;\n")
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
			case !p.Delete && p.Handle == "CUcontext":
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
		fixed += 8
		switch {
		case p.Dir == api.Value && !p.Struct && !p.Float || p.Dir == api.New:
		case p.Dir == api.In && p.Counted() && !hasDevices(p):
			b.f("  if (!%s && %s) return CUDA_ERROR_INVALID_VALUE;\n", p.Name, p.Count)
			b.f("  uint64_t n_%s = %s ? %s : 0;\n", p.Name, p.Name, p.Count)
			b.f("  if (n_%s > ELEMENTS_MAX) return CUDA_ERROR_INVALID_VALUE;\n", p.Name)
			size = append(size, fmt.Sprintf("scuda_pad(n_%s * %d)", p.Name, p.Size))
		default:
			w.err = fmt.Errorf("%s travels in a way that only calls can have that wait (sync)", p.Name)
		}
	}
	for _, p := range w.f.Params {
		if p.Dir == api.New {
			b.f("  uint64_t new_%s = scuda_slot_new(KIND_%s);\n  if (!new_%s) return CUDA_ERROR_OUT_OF_MEMORY;\n", p.Name,
				p.Handle, p.Name)
		}
	}
	if cond := w.doubtful(); cond != "" { // the driver's own error, at the call
		b.f("  if (%s) how |= SCUDA_ANSWER;\n", cond)
	}
	how := "how"
	if slices.ContainsFunc(w.f.Params, func(p api.Param) bool {
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
	switch p.Dir {
	case api.New:
		w.b.f("  p = scuda_put64(p, new_%s);\n", p.Name)
	case api.In:
		w.b.f("  p = scuda_put_array(p, %s, n_%s, %d);\n", p.Name, p.Name, p.Size)
	default:
		word, err := w.word(p)
		if err != nil {
			w.err = err
		}
		if p.Device {
			word = fmt.Sprintf("(uint64_t)(int64_t)scuda_to_server(%s)", p.Name)
		}
		w.b.f("  p = scuda_put64(p, %s);\n", word)
	}
}

// word is the word as which a parameter travels.
func (c *cfront) word(p api.Param) (string, error) {
	ctype, err := c.ctype(p.CType)
	value := p.Dir == api.Value
	switch {
	case err != nil:
		return "", err
	case strings.HasSuffix(ctype, "*"):
		return "(uint64_t)(uintptr_t)" + p.Name, nil
	case value && p.Struct:
		return "(uint64_t)(uintptr_t)&" + p.Name, nil
	case ctype == "float":
		return "scuda_float(" + p.Name + ")", nil
	case ctype == "double":
		return "", fmt.Errorf("%s is a double, for which there is no word", p.Name)
	case value && (p.Signed || p.Device):
		return "(uint64_t)(int64_t)" + p.Name, nil
	case value && ctype == "int32_t": // an enumeration with unsigned values
		return "(uint32_t)" + p.Name, nil
	}
	return "(uint64_t)" + p.Name, nil
}

// send sends the command.
func (w *callWriter) send() {
	b := w.b
	b.f("  r = scuda_send(&c);\n")
	for _, p := range w.f.Params {
		if p.Dir == api.New {
			b.f("  if (r) {\n")
			w.freeNew("    ")
			b.f("    return r;\n  }\n  *%s = new_%s;\n", p.Name, p.Name)
		}
		if p.Delete && p.Handle != "" {
			b.f("  if (!r) scuda_slot_free(%s);\n", p.Name)
		}
	}
	b.f("  return r;\n")
}
