package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocsNameWhatIsThere: tests, files and cases that the documentation names in `…` exist.
func TestDocsNameWhatIsThere(t *testing.T) {
	tests := testNames(t)
	check, err := os.ReadFile(filepath.Join(root, "perf/gpu/check.py"))
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(more) == 0 {
			t.Fatal(pattern, more, err)
		}
		pages = append(pages, more...)
	}
	decisions, err := filepath.Glob(filepath.Join(root, "docs/decisions/*.md"))
	if err != nil || len(decisions) == 0 {
		t.Fatal(decisions, err)
	}
	pages = append(pages, decisions...)
	top, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	isTest, isCase := regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`), regexp.MustCompile(`^(c|cuda):(\w+)$`)
	found := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
			name := m[1]
			var there bool
			first, _, isPath := strings.Cut(name, "/")
			switch {
			case isTest.MatchString(name):
				there = tests[name]
			case isCase.MatchString(name):
				c := isCase.FindStringSubmatch(name)
				if there = strings.Contains(string(check), `"`+c[2]+`"`); c[1] == "cuda" {
					_, err := os.Stat(filepath.Join(root, "perf/gpu/cuda", c[2]+".cu"))
					there = err == nil
				}
			case isPath && first != "build" && slices.ContainsFunc(top, func(e fs.DirEntry) bool { return e.Name() == first }) &&
				!strings.ContainsAny(name, " {*…<"):
				_, err := os.Stat(filepath.Join(root, name))
				there = err == nil
			default:
				continue
			}
			if found++; !there {
				t.Errorf("%s names `%s`, which is not there", filepath.Base(page), name)
			}
		}
	}
	if found < 100 {
		t.Errorf("%d names were found", found)
	}
}

// testNames are the tests of all packages.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "grep", "-hoE", `^func (Test|Fuzz|Benchmark)[A-Za-z0-9_]+`, "--",
		"*_test.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		names[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	return names
}
