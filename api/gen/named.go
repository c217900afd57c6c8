package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// callers are the folders whose Go code calls functions of a driver by name. What it calls is what the interfaces
// cuda.Driver and nvml.Driver have, so there is no list of it beside the calls themselves. Everything else goes to a
// driver as words.
var callers = []string{"server", "cmd", "driver/real"}

var calledName = regexp.MustCompile(`(\w*)\.((?:Cu|Nvml)[A-Z]\w*)`)

// namedFunctions lists the functions of lib that Go code of the tree at root calls by name.
func namedFunctions(root string, lib *api.Library) ([]*api.Func, error) {
	byName := map[string]*api.Func{}
	for _, fn := range Methods(lib) {
		byName[api.GoName(fn.Name)] = fn
	}
	called := map[*api.Func]bool{}
	for _, folder := range callers {
		err := filepath.WalkDir(filepath.Join(root, filepath.FromSlash(folder)),
			func(path string, entry fs.DirEntry, err error) error {
				name := filepath.Base(path)
				if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasPrefix(name, "zz_") ||
					folder == "driver/real" && strings.HasSuffix(name, "_test.go") { // its tests call by words
					return err
				}
				text, err := os.ReadFile(path)
				for _, m := range calledName.FindAllSubmatch(text, -1) {
					// Behind a package's name there is a type.
					if fn := byName[string(m[2])]; fn != nil && string(m[1]) != "cuda" && string(m[1]) != "nvml" {
						called[fn] = true
					}
				}
				return err
			})
		if err != nil {
			return nil, fmt.Errorf("looking for calls of the driver in %s: %w", folder, err)
		}
	}
	return slices.DeleteFunc(Methods(lib), func(fn *api.Func) bool { return !called[fn] }), nil
}
