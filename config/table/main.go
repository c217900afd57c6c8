// Command table writes the tables of settings in README.md and docs/operations.md from package config. Run it from
// the top folder: go run ./config/table. With -check it writes nothing and fails when a table is not what it would
// write.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"scuda.dev/scuda/config"
)

const begin, end = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"

var (
	errMarks = errors.New("the marks of the table of settings are missing")
	errStale = errors.New("the table of settings is not up to date; run: go run ./config/table")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("table: ")
	check := flag.Bool("check", false, "compare only")
	flag.Parse()
	if err := run(".", *check); err != nil {
		log.Fatal(err)
	}
}

func run(root string, check bool) error {
	return errors.Join(page(filepath.Join(root, "README.md"), short(), check),
		page(filepath.Join(root, "docs/operations.md"), long(), check))
}

// page puts a table between the marks of a page.
func page(path, table string, check bool) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		return fmt.Errorf("%s: %w", path, errMarks)
	case old == table:
		return nil
	case check:
		return fmt.Errorf("%s: %w", path, errStale)
	}
	return os.WriteFile(path, []byte(head+begin+table+end+tail), 0o644)
}

// short is the README's table: what clients' users need.
func short() string {
	var b strings.Builder
	b.WriteString("| setting | meaning |\n|---|---|\n")
	for _, s := range config.Settings {
		if s.Common {
			fmt.Fprintf(&b, "| `%s` | %s |\n", s.Name, s.Meaning)
		}
	}
	b.WriteString("| `CUDA_VISIBLE_DEVICES` | as natively |\n")
	return b.String()
}

// long is that of docs/operations.md: all of them.
func long() string {
	var b strings.Builder
	b.WriteString("| setting | meaning to a client | option of the server |\n|---|---|---|\n")
	for _, s := range config.Settings {
		option := ""
		if s.Server {
			option = "`--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.Name, "SCUDA_")), "_", "-") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, s.Meaning, option)
	}
	return b.String()
}
