package main

import (
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/sim/ptx/ptxtest"
)

// TestPrograms: what is generated is accepted, ends, gives the same every time, and a trace changes nothing.
func TestPrograms(t *testing.T) {
	numbers, err := choose(60, "")
	if err != nil {
		t.Fatal(err)
	}
	first, traced := programs(7, numbers, false), programs(7, numbers, true)
	for _, b := range []*ptxtest.Bundle{first, traced} {
		if err := results(b); err != nil {
			t.Fatal(err)
		}
	}
	different := map[string]bool{}
	for i, l := range first.Launches {
		want := traced.Launches[i].Args[1]
		if d := want.Difference(l.Args[1].Want); d != "" {
			t.Errorf("%s with its trace: %s", l.Name, d)
		}
		different[string(l.Args[1].Want)] = true
		if len(traced.Launches[i].Steps) == 0 {
			t.Errorf("%s has no steps", l.Name)
		}
	}
	if len(different) != len(first.Launches) {
		t.Errorf("only %d of %d programs have results of their own", len(different), len(first.Launches))
	}
	one := programs(7, []int{17}, false)
	if err := results(one); err != nil {
		t.Fatal(err)
	}
	if d := first.Launches[17].Args[1].Difference(one.Launches[0].Args[1].Want); d != "" {
		t.Errorf("program 17 alone: %s", d)
	}
}

// TestCoverage: 300 programs use every template.
func TestCoverage(t *testing.T) {
	var all strings.Builder
	for i := range 300 {
		all.WriteString(generate(3, i, false).text)
	}
	text := all.String()
	for _, list := range []map[byte][]string{templates, whole, partial, private} {
		for _, templates := range list {
			for _, tmpl := range templates {
				stem := strings.TrimPrefix(tmpl, "~")
				if i := strings.IndexAny(stem, "<$ "); i > 0 {
					stem = stem[:i]
				}
				if stem[0] != '<' && !strings.Contains(text, stem) {
					t.Errorf("no program has %s", tmpl)
				}
			}
		}
	}
}

func TestFile(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		bundle   func() (*ptxtest.Bundle, error)
		launches int
	}{
		{func() (*ptxtest.Bundle, error) { return programs(5, []int{0, 1, 2}, true), nil }, 3},
		{func() (*ptxtest.Bundle, error) { return kernelBundle("../../../testdata/kernels/kernels.ptx") }, 12},
		{func() (*ptxtest.Bundle, error) { return edges(), nil }, 90},
		{func() (*ptxtest.Bundle, error) { return products(), nil }, 192},
	} {
		path := filepath.Join(folder, "a.bundle")
		if err := run(c.bundle, path); err != nil {
			t.Fatal(err)
		}
		b, err := ptxtest.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Launches) != c.launches {
			t.Errorf("%d launches, not %d", len(b.Launches), c.launches)
		}
	}
}
