// Command check says which links of the built site lead nowhere, and what its pages would fetch from elsewhere.
//
//	go run ./docs/site/check build/site/html
//
// `make site` calls it. It reads HTML as the generator writes it, with attributes in double quotes.
package main

import (
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	leads = regexp.MustCompile(`<(\w+)[^>]*? (?:href|src)="([^"]*)"`)
	names = regexp.MustCompile(` id="([^"]*)"`)
)

// site is what was read of a folder: each page's text, and the names that links can point at.
type site struct {
	pages map[string]string // by address, as all below
	names map[string]map[string]bool
	files map[string]bool
}

func read(folder fs.FS) (*site, error) {
	s := &site{pages: map[string]string{}, names: map[string]map[string]bool{}, files: map[string]bool{}}
	err := fs.WalkDir(folder, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		at := "/" + file
		s.files[at] = true
		if filepath.Ext(file) != ".html" {
			return nil
		}
		text, err := fs.ReadFile(folder, file)
		if err != nil {
			return err
		}
		s.pages[at], s.names[at] = string(text), map[string]bool{"": true}
		for _, m := range names.FindAllStringSubmatch(string(text), -1) {
			s.names[at][html.UnescapeString(m[1])] = true
		}
		return nil
	})
	return s, err
}

// problem is what is wrong with a link of a page; empty where nothing is.
func (s *site) problem(at, tag, to string) string {
	u, err := url.Parse(html.UnescapeString(to))
	switch {
	case err != nil:
		return "it is no address"
	case u.Scheme == "data", tag == "a" && u.IsAbs():
		return ""
	case u.IsAbs() || u.Host != "":
		return "it is fetched from elsewhere"
	}
	file := at
	if u.Path != "" {
		file = path.Join(path.Dir(at), u.Path)
		if path.IsAbs(u.Path) {
			file = path.Clean(u.Path)
		}
		if strings.HasSuffix(u.Path, "/") {
			file = path.Join(file, "index.html")
		}
	}
	if !s.files[file] {
		return "there is no such file"
	}
	if page := s.names[file]; page != nil && !page[u.Fragment] {
		return "that page has no such heading"
	}
	return ""
}

// Problems gives a line for each bad link, and the number of links that were looked at.
func (s *site) problems() (bad []string, links int) {
	for at, text := range s.pages {
		for _, m := range leads.FindAllStringSubmatch(text, -1) {
			links++
			if why := s.problem(at, m[1], m[2]); why != "" {
				bad = append(bad, fmt.Sprintf("%s leads to %s: %s", at, m[2], why))
			}
		}
	}
	return bad, links
}

func run(folder string) error {
	s, err := read(os.DirFS(folder))
	if err != nil {
		return err
	}
	bad, links := s.problems()
	if len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "\n"))
	}
	if len(s.pages) < 30 || links < 1000 {
		return fmt.Errorf("%s has %d pages and %d links only; build it with make site", folder, len(s.pages), links)
	}
	fmt.Printf("%d pages, %d links: none leads nowhere\n", len(s.pages), links)
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: check FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
