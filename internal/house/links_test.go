package house

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// relative gives the files that a page links to, by their names from the top of the repository.
func relative(page, text string) (files []string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target != "" && !strings.Contains(target, ":") {
			files = append(files, path.Join(path.Dir(page), target))
		}
	}
	return files
}

// TestLinks: the pages link to files that are there. Notes of changes are left out: their text stands in CHANGELOG.md.
func TestLinks(t *testing.T) {
	found := 0
	for _, page := range sources(t) {
		if path.Ext(page) != ".md" || strings.HasPrefix(page, "changelog/") {
			continue
		}
		for _, file := range relative(page, read(t, page)) {
			found++
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, file)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d links were found", found)
	}
}
