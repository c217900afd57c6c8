package house

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "scuda.dev/scuda"
)

var (
	update = flag.Bool("update", false, "write the lists of this folder and the table of folders anew")
	accept = flag.Bool("accept", false, "with -update: allow the imports that there are, and what has grown")
)

// sources are the files of the repository by their names from its top, new ones that git does not ignore among them.
func sources(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var files []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSuffix(line, "\n")
		if info, err := os.Lstat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	if len(files) < 100 {
		t.Fatalf("git names %d files", len(files))
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// read is the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// write puts a text into a file of the repository, if it is not there yet.
func write(t *testing.T, name, text string) {
	t.Helper()
	if text == read(t, name) {
		return
	}
	if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %s", name)
}

// generated says whether a generator wrote the file.
func generated(text string) bool {
	head := text[:min(len(text), 512)]
	return strings.Contains(head, "Code generated ") && strings.Contains(head, "DO NOT EDIT")
}
