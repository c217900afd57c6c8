package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A table is as wide as the terminal at most: columns are cut first, then left out.
func TestTableFits(t *testing.T) {
	columns := []column{
		{name: "ID"}, {name: "NAME", soft: true}, {name: "N", right: true, spare: 2}, {name: "WHERE", soft: true, spare: 1},
	}
	rows := [][]string{{"a1", strings.Repeat("ü", 30), "5", "here"}, {"b22", "x", "1234", strings.Repeat("y", 20)}}
	for width, want := range map[int]string{
		0: "ID   NAME                               N  WHERE\n" +
			"a1   " + strings.Repeat("ü", 30) + "     5  here\n" +
			"b22  x                               1234  yyyyyyyyyyyyyyyyyyyy\n",
		40: "ID   NAME              N  WHERE\n" +
			"a1   üüüüüüüüüüüü…     5  here\n" +
			"b22  x              1234  yyyyyyyyyyyyy…\n",
		24: "ID   NAME      WHERE\na1   üüüüüüü…  here\nb22  x         yyyyyyy…\n",
		14: "ID   NAME\na1   üüüüüüü…\nb22  x\n",
		6:  "ID   …\na1   …\nb22  x\n",
	} {
		var out strings.Builder
		if err := writeTable(&out, width, columns, rows); err != nil || out.String() != want {
			t.Errorf("width %d: %v\n%s\nnot\n%s", width, err, &out, want)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); width > 0 && n > width {
				t.Errorf("width %d: %d characters in %q", width, n, line)
			}
		}
	}
}
