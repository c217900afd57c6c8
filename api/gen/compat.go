package main

import (
	"cmp"
	_ "embed"
	"slices"
	"strings"
	"text/template"

	"scuda.dev/scuda/api"
)

// groups sort the functions for the page.
var groups = []struct {
	title string
	has   func(*api.Func) bool
}{
	{"works", func(f *api.Func) bool { return f.Class > api.Refused }},
	{"refused, as by the driver", func(f *api.Func) bool { return f.Class == api.Refused }},
	{"not there yet", func(f *api.Func) bool { return f.Class == api.Missing }},
	{"not supported", func(f *api.Func) bool { return f.Class == api.Unsupported }},
}

// compatText is what people wrote of the page.
//
//go:embed compat.md.tmpl
var compatText string

var compatTemplate = template.Must(template.New("compat.md.tmpl").Parse(compatText))

// text appends a part of the page that people wrote.
func (b *buffer) text(name string, data any) {
	if err := compatTemplate.ExecuteTemplate(b, name, data); err != nil {
		panic(err) // the template and what it is given stand in this package
	}
}

// emitCompat writes docs/compatibility.md.
func emitCompat(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("<!-- %s -->\n", Notice)
	b.text("head", struct{ CUDA string }{cudaVersion[:2] + "." + cudaVersion[3:4]})
	libs := []*api.Library{spec.CUDA, spec.NVML}
	b.f("\n| library | exported |")
	for _, g := range groups {
		b.f(" %s |", g.title)
	}
	b.f("\n|---|---|---|---|---|---|\n")
	for _, lib := range libs {
		b.f("| `%s` | %d |", lib.Soname, len(lib.Funcs))
		for _, g := range groups {
			n := 0
			for _, fn := range lib.Funcs {
				if g.has(fn) {
					n++
				}
			}
			b.f(" %d |", n)
		}
		b.f("\n")
	}
	for _, lib := range libs {
		compatLibrary(b, lib)
		compatParts(b, lib)
	}
	compatAttributes(b, spec.CUDA)
	seen, name, err := loadSeen(out.root)
	if err != nil {
		return err
	}
	emitSeen(b, seen, name)
	return out.File("docs/compatibility.md", b.Bytes())
}

// compatParts lists what functions that work do not support.
func compatParts(b *buffer, lib *api.Library) {
	if len(lib.Parts) == 0 {
		return
	}
	b.text("parts", lib.Soname)
	for _, p := range lib.Parts {
		b.f("| %s | `%s` |\n", p.Text, strings.Join(p.Funcs, "` `"))
	}
}

func compatLibrary(b *buffer, lib *api.Library) {
	b.f("\n## `%s`\n", lib.Soname)
	for _, g := range groups {
		b.f("\n### %s: %s\n\n", lib.Soname, g.title)
		if g.title == "works" {
			b.f("| function | how |\n|---|---|\n")
			for _, fn := range lib.Funcs {
				if g.has(fn) && !fn.PTSZ {
					note := fn.Class.String()
					if fn.Alias != "" {
						note += ", as `" + fn.Alias + "`"
					}
					if fn.Flag(api.FlagDenied) {
						note += ", *denied*"
					}
					b.f("| `%s` | %s |\n", fn.Name, note)
				}
			}
			continue
		}
		byReason := map[string][]string{}
		for _, fn := range lib.Funcs {
			if g.has(fn) && !fn.PTSZ {
				why := fn.Reason
				if fn.Answer != "" {
					why += " (`" + fn.Answer + "`)"
				}
				byReason[why] = append(byReason[why], "`"+fn.Name+"`")
			}
		}
		var reasons []string
		for r := range byReason {
			reasons = append(reasons, r)
		}
		if len(reasons) == 0 {
			b.f("Nothing.\n")
			continue
		}
		slices.SortFunc(reasons, func(a, c string) int {
			return cmp.Or(cmp.Compare(len(byReason[c]), len(byReason[a])), strings.Compare(a, c))
		})
		b.f("| why | functions |\n|---|---|\n")
		for _, r := range reasons {
			b.f("| %s | %s |\n", r, strings.Join(byReason[r], " "))
		}
	}
}

// compatAttributes lists the device attributes that do not say what the server's driver says.
func compatAttributes(b *buffer, lib *api.Library) {
	b.text("attributes", nil)
	var reasons []string
	byReason := map[string][]string{}
	for _, a := range lib.Absent {
		if byReason[a.Reason] == nil {
			reasons = append(reasons, a.Reason)
		}
		byReason[a.Reason] = append(byReason[a.Reason], "`"+strings.TrimPrefix(a.Name, "CU_DEVICE_ATTRIBUTE_")+"`")
	}
	for _, r := range reasons {
		b.f("| %s | %s |\n", r, strings.Join(byReason[r], " "))
	}
}
