// Command sbom writes a list of what programs are made of (a software bill of materials), in CycloneDX's form. Releases
// have one for each processor. It reads what the Go linker wrote into the programs, so it says what is in them, and not
// what go.mod asks for.
//
//	sbom VERSION FILE…   prints the list
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := write(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// The parts of CycloneDX 1.5 that are used.
type (
	bill struct {
		Format     string      `json:"bomFormat"`
		Spec       string      `json:"specVersion"`
		Version    int         `json:"version"`
		Metadata   metadata    `json:"metadata"`
		Components []component `json:"components"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type       string      `json:"type"`
		Ref        string      `json:"bom-ref"`
		Name       string      `json:"name"`
		Version    string      `json:"version,omitempty"`
		PURL       string      `json:"purl,omitempty"`
		Hashes     []hash      `json:"hashes,omitempty"`
		Properties []property  `json:"properties,omitempty"`
		Components []component `json:"components,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

func write(w io.Writer, args []string) error {
	if len(args) < 2 {
		return errors.New("no version or no files; call it as sbom VERSION FILE…")
	}
	whole := component{Type: "application", Ref: "scuda", Name: "scuda", Version: args[0]}
	modules := map[string]component{}
	for _, file := range args[1:] {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		name := filepath.Base(file)
		whole.Components = append(whole.Components, component{Type: "file", Ref: "file:" + name, Name: name,
			Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}})
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			continue // written in C alone
		}
		goVersion := strings.TrimPrefix(info.GoVersion, "go")
		add(modules, "stdlib", goVersion, "")
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add(modules, m.Path, m.Version, m.Sum)
		}
	}
	b := bill{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{whole}}
	for _, c := range modules {
		b.Components = append(b.Components, c)
	}
	slices.SortFunc(b.Components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

func add(modules map[string]component, path, version, sum string) {
	url := "pkg:golang/" + path + "@" + version
	c := component{Type: "library", Ref: url, Name: path, Version: version, PURL: url}
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	modules[url] = c
}
