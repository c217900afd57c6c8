package curve

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

func TestChart(t *testing.T) {
	for name, c := range map[string]struct {
		losses         []float64
		steps, columns int
		want           []string
	}{
		"falls": {[]float64{4, 3, 2, 1}, 4, 60, []string{" 4.00  █", "       █", "       ██", "       ██", "       ███",
			"       ███", "       ████", " 0.00  ████"}},
		"half of it, two steps a column": {[]float64{4, 2, 1.5, 0.5}, 8, 4, []string{" 4.00  ", "       ", "       █",
			"       █", "       █", "       █", "       ██", " 0.00  ██"}},
	} {
		if got := Chart(c.losses, c.steps, c.columns); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// No line is wider than the terminal, each picture takes the place of the one before it, and colours come only where
// they were asked for.
func TestLive(t *testing.T) {
	for _, colour := range []string{"", "\x1b[32m"} {
		for _, width := range []int{20, 80, 300} {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				c := New(&out, 100, width, colour)
				for i := range 100 {
					c.Add(4 - float64(i)/30)
					time.Sleep(50 * time.Millisecond)
				}
				c.End()
				text := out.String()
				if up, n := strings.Count(text, "\x1b[9A"), strings.Count(text, "\n"); up < 40 || n != 9*(up+1) {
					t.Errorf("%d pictures and %d lines", up+1, n)
				}
				if strings.Contains(text, "\x1b[32m") != (colour != "") {
					t.Error("wrong colours")
				}
				for line := range strings.Lines(text) {
					_, line, _ = strings.Cut(line, "\x1b[K")
					line = strings.NewReplacer("\x1b[32m", "", "\x1b[0m", "", "\n", "").Replace(line)
					if n := utf8.RuneCountInString(line); n >= width {
						t.Errorf("%d columns of %d: %q", n, width, line)
					}
				}
				if width > 70 && !strings.Contains(text, "step  51 of 100  loss 2.333  2 s left") {
					t.Errorf("no time that is left in %q", text)
				}
			})
		}
	}
}

// Where nobody watches there are few lines, without any sequence for terminals.
func TestPlain(t *testing.T) {
	var out bytes.Buffer
	c := New(&out, 250, 0, "")
	for i := range 250 {
		c.Add(3 - float64(i)/100)
	}
	c.End()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 11 || !strings.HasPrefix(lines[0], "step   1 of 250  loss 3.000") ||
		lines[10] != "step 250 of 250  loss 0.510" || slices.ContainsFunc(lines, func(s string) bool {
		return strings.Contains(s, "\x1b")
	}) {
		t.Errorf("%q", lines)
	}
}
