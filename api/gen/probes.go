package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// copying are the functions that move bytes between memories in one piece.
var copying = regexp.MustCompile(`^cu(Memcpy|MemPrefetch)`)

// sizeNames are the parameters in which they have the number of bytes, sizeFields the fields of the structures in which
// it lies otherwise.
var (
	sizeNames  = []string{"ByteCount", "count"}
	sizeFields = []string{"WidthInBytes", "Height", "Depth"}
)

// registers is how many arguments a probe can see.
const registers = 6

// emitProbes writes the functions that package ebpf attaches to: names, where a copy's size is, and which are called
// most.
func emitProbes(spec *api.Spec, out *Output) error {
	mix, err := readCallMix(filepath.Join(out.root, "api/facts/call-mix.json"))
	if err != nil {
		return err
	}
	b := &buffer{}
	b.f("package ebpf\n\n// entries are the functions that the driver libraries export.\nvar entries = []entry{\n")
	for _, lib := range []*api.Library{spec.CUDA, spec.NVML} {
		for _, f := range lib.Funcs {
			if f.Data {
				continue
			}
			b.f("{name: %q", f.Name)
			if o := operandOf(lib, f); o != "" {
				b.f(", size: operand{%s}", o)
			}
			if n := mix[f.Name]; n > 0 {
				b.f(", used: %d", n)
			}
			b.f("},\n")
		}
	}
	b.f("}\n")
	return out.GoFile("ebpf/zz_entries_gen.go", b.Bytes())
}

func operandOf(lib *api.Library, f *api.Func) string {
	if !copying.MatchString(f.Name) || strings.Contains(f.Name, "Batch") { // a batch's count is that of its copies
		return ""
	}
	for i, p := range f.Params[:min(len(f.Params), registers)] {
		if slices.Contains(sizeNames, p.Name) && p.Size == 8 && p.Dir == api.Value {
			return fmt.Sprintf("arg: %d", i+1)
		}
		s := lib.Struct(strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(p.CType, "const "), "*")))
		if s == nil || !strings.HasSuffix(strings.TrimSpace(p.CType), "*") {
			continue
		}
		var at []string
		for _, name := range sizeFields {
			if k := slices.IndexFunc(s.Fields, func(x api.Field) bool { return x.Name == name && x.CType == "size_t" }); k >= 0 {
				at = append(at, fmt.Sprint(s.Fields[k].Offset))
			}
		}
		if len(at) > 0 {
			return fmt.Sprintf("arg: %d, fields: []uint16{%s}", i+1, strings.Join(at, ", "))
		}
	}
	return ""
}

// readCallMix gives in how many of the measured workloads a function is called.
func readCallMix(path string) (map[string]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var mix struct {
		Workloads map[string]struct{ Calls map[string]int }
	}
	if err := json.Unmarshal(text, &mix); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	used := map[string]int{}
	for _, w := range mix.Workloads {
		for name := range w.Calls {
			used[name]++
		}
	}
	return used, nil
}
