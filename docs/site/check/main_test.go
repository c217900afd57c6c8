package main

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestProblems(t *testing.T) {
	s, err := read(fstest.MapFS{
		"index.html": {Data: []byte(`<h1 id="a&amp;b"></h1><a class="x" href="#a&amp;b"></a><a href="/sub/"></a>` +
			`<a href="https://other.example/"></a><img src="./p.svg"><link rel="icon" href="data:,">`)},
		"sub/index.html": {Data: []byte(`<a href="../index.html#%C3%A4"></a><a href="none.html"></a>` +
			`<script src="https://other.example/x.js"></script><img src="//other.example/x.png">` +
			`<a href="/index.html"></a><a href="/none/"></a>`)},
		"p.svg": {},
	})
	if err != nil {
		t.Fatal(err)
	}
	bad, links := s.problems()
	slices.Sort(bad)
	want := []string{
		"/sub/index.html leads to ../index.html#%C3%A4: that page has no such heading",
		"/sub/index.html leads to //other.example/x.png: it is fetched from elsewhere",
		"/sub/index.html leads to /none/: there is no such file",
		"/sub/index.html leads to https://other.example/x.js: it is fetched from elsewhere",
		"/sub/index.html leads to none.html: there is no such file",
	}
	if !slices.Equal(bad, want) || links != 11 {
		t.Errorf("%d links, %s", links, strings.Join(bad, "\n"))
	}
}

func TestEmptySite(t *testing.T) {
	if err := run(t.TempDir()); err == nil || !strings.Contains(err.Error(), "make site") {
		t.Errorf("got %v", err)
	}
}
