package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	code    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	marks   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)|[^\p{L}\p{N}\p{M} _-]`)
)

// pages keeps the anchors of the repository's pages, each of which has many links to it.
type pages map[string]map[string]bool

func (p pages) have(file, anchor string) bool {
	if p[file] == nil {
		b, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		p[file] = anchors(string(b))
	}
	return p[file][anchor]
}

// anchors are those that a page's headings get where the repository is read in a browser.
func anchors(page string) map[string]bool {
	found, times := map[string]bool{}, map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		name := strings.ReplaceAll(strings.ToLower(marks.ReplaceAllString(m[1], "$1")), " ", "-")
		if n := times[name]; n > 0 {
			found[fmt.Sprintf("%s-%d", name, n)] = true
		}
		times[name]++
		found[name] = true
	}
	return found
}

// deadLinks are the links of a page to files, and to headings of pages, that are not there. Links begin at a folder.
func (p pages) deadLinks(file, folder string) (dead []string, links int, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, err
	}
	text := code.ReplaceAllString(fenced.ReplaceAllString(string(b), ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		path, anchor, hasAnchor := strings.Cut(m[1], "#")
		if strings.Contains(path, ":") { // another site
			continue
		}
		links++
		to := file
		if path != "" {
			to = filepath.Join(folder, path)
		}
		if _, err := os.Stat(to); err != nil {
			dead = append(dead, m[1])
			continue
		}
		if !hasAnchor {
			continue
		}
		if !p.have(to, anchor) {
			dead = append(dead, m[1])
		}
	}
	return dead, links, nil
}

// TestLinks: no link of a page leads nowhere.
func TestLinks(t *testing.T) {
	all, known := 0, pages{}
	for _, file := range sources(t) {
		if filepath.Ext(file) != ".md" {
			continue
		}
		folder := filepath.Join(root, filepath.Dir(file))
		if strings.HasPrefix(file, "changelog/") { // these become CHANGELOG.md
			folder = root
		}
		dead, n, err := known.deadLinks(filepath.Join(root, file), folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range dead {
			t.Errorf("%s: the link to %s is dead", file, to)
		}
		all += n
	}
	if all < 100 {
		t.Errorf("%d links were found", all)
	}
}

// TestIndex: docs/README.md leads to every page of docs, or to the README.md of the page's folder. The menu of the site
// (docs/site) is made of it.
func TestIndex(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	leads := map[string]bool{"docs/README.md": true}
	for _, m := range link.FindAllStringSubmatch(string(b), -1) {
		path, _, _ := strings.Cut(m[1], "#")
		leads[filepath.Join("docs", path)] = true
	}
	for _, file := range sources(t) {
		if filepath.Ext(file) == ".md" && strings.HasPrefix(file, "docs/") && !leads[file] &&
			!leads[filepath.Join(filepath.Dir(file), "README.md")] {
			t.Errorf("docs/README.md does not lead to %s", file)
		}
	}
}

func TestDeadLinks(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"a.md": "[1](b.md) [2](#one-two-3) ![3](c.svg) [4](b.md#äh-code_x) [5](https://a.b/c) `[6](none)`\n" +
			"# One: two (3)!\n```\n[7](none)\n# not a heading\n```\n[dead](c.md) [dead](#not-a-heading) [dead](b.md#x) " +
			"[fine](b.md#twice-1)",
		"b.md":  "# Äh, `code_x`\n## Twice\n## Twice\n",
		"c.svg": "",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dead, n, err := pages{}.deadLinks(filepath.Join(folder, "a.md"), folder)
	if err != nil || n != 8 || fmt.Sprint(dead) != "[c.md #not-a-heading b.md#x]" {
		t.Errorf("%q, %d links, %v", dead, n, err)
	}
}
