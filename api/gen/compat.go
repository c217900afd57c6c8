package main

import (
	"cmp"
	"slices"
	"strings"

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

// emitCompat writes docs/compatibility.md.
func emitCompat(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("<!-- %s -->\n# Compatibility\n\n", Notice)
	b.f("Every function that NVIDIA's libraries export is exported by scuda's. What a function does stands here; it " +
		"follows from `api/*.semantics`.\n")
	b.f("Forms with `_ptsz` or `_ptds` at the end (per-thread default stream) do what the function without it does.\n\n")
	b.f("| how | meaning |\n|---|---|\n")
	for _, c := range []struct{ class, meaning string }{
		{"local", "answered by the client's library without the server"},
		{"async", "sent to the server, returns at once; an error comes with a later call, as launch errors do"},
		{"sync", "sent to the server, which answers"},
		{"hand", "written by hand in the client's library: may be answered there, sent in another form, or both"},
		{"refused", "answers the error that the driver gives to every call of it"},
		{"missing, unsupported",
			"answers `CUDA_ERROR_NOT_SUPPORTED` (801) or `NVML_ERROR_NOT_SUPPORTED` (3), logged once by name"},
		{"sync, *denied*",
			"changes a setting of the server's GPUs: `NVML_ERROR_NO_PERMISSION` (4) unless the server runs with " +
				"`--allow-nvml-set`"},
	} {
		b.f("| %s | %s |\n", c.class, c.meaning)
	}
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
	compatReleases(b)
	compatVersions(b)
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
	b.f("\n### %s: not supported in part\n\nThese functions work, but answer `CUDA_ERROR_NOT_SUPPORTED` (801) to what "+
		"stands here. Each refusal is logged once by the function's name: by the client's\n", lib.Soname)
	b.f("library, or by the server, which says so in its own log.\n\n| what | functions |\n|---|---|\n")
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

// compatReleases says which releases of scuda work together.
func compatReleases(b *buffer) {
	b.f(`
## Which versions work together

Client and server are releases of scuda. ` + "`scuda version`" + ` shows a release's version, the versions of the protocol that it speaks, and the digest of
what travels in it (operation numbers, parameters, structures; not comments or builds). ` + "`scuda info`" + ` shows both sides'.

| client and server | |
|---|---|
| the same release | work together |
| different builds with the same digest and a common protocol version | work together |
| another digest, or no common protocol version | the server refuses the session; the message names both releases, what differs and the remedy: install the same release on both machines |
| one side lacks a capability that the other has | work together without it |
| one side lacks a capability that the other cannot do without | the session is refused by the capability's name |

Versions are semantic (` + "`VERSION`" + `, from 0.3.0 on); a build between releases has the commit behind a plus sign (0.3.0-dev+g1a2b3c4d5). Until a release says otherwise here, only
equal digests work together: releases before 1.0 may change what travels. What is promised for later is prepared: an operation's number never changes and is never used
again (` + "`api/facts/operations.tsv`, `api/wire.spec`" + `), and both sides say a range of protocol versions and capabilities by name when a connection opens
([protocol.md](protocol.md#opening)).
`)
}

// compatVersions says what a program is told where the server's driver is older or newer than the description.
func compatVersions(b *buffer) {
	b.f("\n## Versions\n\nThe client's libraries have the functions of CUDA %s. `cuDriverGetVersion` says what the "+
		"server's driver says, but no more than that: with a newer driver, programs\n", cudaVersion[:2]+"."+cudaVersion[3:4])
	b.f("find what they would find with that version (`nvmlSystemGetCudaDriverVersion` and `nvidia-smi` show the " +
		"driver's own). With an older driver, `cuGetProcAddress` does not know the names that came\n")
	b.f("later (`CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`), attributes that it does not know answer its error, and " +
		"functions that it lacks answer `CUDA_ERROR_NOT_SUPPORTED`.\n")
	b.f("\nThe libraries' names are there all the same, for the linker and for `dlsym`, which cannot know the server's " +
		"driver. Where that driver is older than a function with `_v2` in its name, such as\n")
	b.f(
		"`cuCtxGetDevice_v2` of CUDA 13, the name is the function without `_v2`, with that one's parameters: so programs " +
			"that look for the newest name and call what they find (numba up to 0.61) work as they do on that driver.\n")
	b.f("With a driver of CUDA 13, `cuCtxGetDevice_v2` and `cuCtxSynchronize_v2` take what cannot be a context for the " +
		"current one; NVIDIA's library follows it.\n")
}

// compatAttributes lists the device attributes that do not say what the server's driver says.
func compatAttributes(b *buffer, lib *api.Library) {
	b.f("\n## Device attributes\n\n`cuDeviceGetAttribute` answers what the server's driver answers, but 0 for what " +
		"programs cannot have through a network.\n\n")
	b.f("| why | say 0 (`CU_DEVICE_ATTRIBUTE_`…) |\n|---|---|\n")
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
