package sim

import (
	"reflect"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
	"scuda.dev/scuda/sim/smi"
)

// Calls come to the simulated drivers as words, which are taken for what the methods say: each method has the
// parameters and the result that the description gives to its function.
func TestMethodsAreTheDescriptions(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lib         *api.Library
		driver      reflect.Type
		prefix, pkg string
		least       int
	}{
		{spec.CUDA, reflect.TypeFor[*GPU](), "Cu", "cuda", 370},
		{spec.NVML, reflect.TypeFor[*smi.Driver](), "Nvml", "nvml", 130},
	} {
		functions := map[string]*api.Func{}
		for _, f := range c.lib.Funcs {
			if !f.PTSZ && !f.NoProto {
				functions[api.GoName(f.Name)] = f
			}
		}
		n := 0
		for m := range c.driver.Methods() {
			if !strings.HasPrefix(m.Name, c.prefix) {
				continue
			}
			n++
			f := functions[m.Name]
			if f == nil {
				t.Errorf("%s: there is no such function", m.Name)
				continue
			}
			want := make([]string, len(f.Params))
			for k, p := range f.Params {
				want[k] = goType(c.lib, c.pkg, p.GoType)
			}
			var got []string
			for k := 1; k < m.Type.NumIn(); k++ { // the first is the receiver
				got = append(got, m.Type.In(k).String())
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") || m.Type.NumOut() != 1 ||
				m.Type.Out(0).String() != goType(c.lib, c.pkg, c.lib.GoParam(f.Ret)) {
				t.Errorf("%s: %s, the description says (%s)", m.Name, m.Type, strings.Join(want, ", "))
			}
		}
		if n < c.least {
			t.Errorf("%s has %d methods", c.driver, n)
		}
	}
}

// goType writes a Go type of the description as reflect does, which knows no aliases.
func goType(lib *api.Library, pkg, name string) string {
	name, pointer := strings.CutPrefix(name, "*")
	for c, t := range lib.Types {
		if api.GoTypeName(c) == name && (t.Kind == "struct" || t.Kind == "enum" || t.Kind == "handle") {
			name = api.GoTypeName(t.Underlying)
			break
		}
	}
	if name[0] >= 'A' && name[0] <= 'Z' {
		name = pkg + "." + name
	}
	if pointer {
		name = "*" + name
	}
	return name
}
