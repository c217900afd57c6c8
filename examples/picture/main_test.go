package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func shown(s *screen) string {
	var lines []string
	for _, line := range s.shown() {
		lines = append(lines, string(line))
	}
	return strings.Join(lines, "|")
}

func TestScreen(t *testing.T) {
	for name, c := range map[string]struct {
		parts []string
		want  string
	}{
		"lines":              {[]string{"a\r\nbc\n", "d"}, "a|bc|d"},
		"a line anew":        {[]string{"12345\r\x1b[K12"}, "12"},
		"lines above":        {[]string{"a\nb\nc\n\x1b[2A\r\x1b[KB\r\n\x1b[32mC\x1b[0m"}, "a|B|C"},
		"a torn sequence":    {[]string{"a\nb\x1b", "[", "1", "A\rA"}, "A|b"},
		"a torn character":   {[]string{"\xe2\x96", "\x88"}, "█"},
		"more than is shown": {[]string{strings.Repeat("x\n", 100) + "end"}, strings.Repeat("x|", rows-1) + "end"},
		"a long line":        {[]string{strings.Repeat("x", columns) + "y"}, strings.Repeat("x", columns) + "|y"},
	} {
		var s screen
		for _, p := range c.parts {
			s.write(p)
		}
		if got := shown(&s); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// wellFormed reads a picture to its end.
func wellFormed(t *testing.T, picture string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnimate(t *testing.T) {
	picture := Animate([]take{{"scuda <demo>", []part{{time.Second, "first\r\n"},
		{30 * time.Second, "\x1b[1A\rthen & █▄\r\n"}}}}, 10*time.Second)
	wellFormed(t, picture)
	for _, want := range []string{"30 seconds, played 3.0 times as fast", "$ scuda &lt;demo&gt;</text>", ">first</text>",
		`values="none;inline" keyTimes="0;0.7368"/><text x="16.0"`, "then &amp;</text>", "v-18.00h8.4v18.00z", "v-9.00h8.4"} {
		if !strings.Contains(picture, want) {
			t.Errorf("%q is not in\n%s", want, picture)
		}
	}
	if strings.Count(picture, `display="inline"`) != 2 {
		t.Errorf("without animation more than the end is seen:\n%s", picture)
	}
}

// Commands follow on each other, each with a prompt, and below what the one before wrote.
func TestAnimateSeveral(t *testing.T) {
	picture := Animate([]take{{"one", []part{{time.Second, "first\r\n"}}}, {"two", nil},
		{"three", []part{{2 * time.Second, "second\r\n"}}}}, 10*time.Second)
	wellFormed(t, picture)
	// The lines: prompt, answer, prompt, prompt, answer. Each command is typed for 1.2 s.
	for _, want := range []string{">3.0 seconds</text>", "one; two; three: a recording, 3.0 seconds",
		`keyTimes="0;0.2075"/><text x="16.0" y="82.0" textLength="42.0" lengthAdjust="spacingAndGlyphs">first</text>`,
		`y="136.0" textLength="50.4" lengthAdjust="spacingAndGlyphs">second</text>`} {
		if !strings.Contains(picture, want) {
			t.Errorf("%q is not in\n%s", want, picture)
		}
	}
	if strings.Count(picture, `display="inline"`) != 5 {
		t.Errorf("at the end not all of it is seen:\n%s", picture)
	}
}

// What the README and the page on installing show are pictures as this program makes them, of runs that ended well.
func TestPicture(t *testing.T) {
	for name, words := range map[string][]string{
		"demo.svg": {"$ scuda demo</text>", "The loss fell from"},
		"install.svg": {"$ sh release/install.sh --from release", "SHA256SUMS is signed with",
			"$ scuda login gpu1 --token-file token", "GPU 0: scuda simulated GPU", "640×400 pixels computed on"},
	} {
		b, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, string(b))
		if len(b) > 1<<20 {
			t.Errorf("%s has %d bytes", name, len(b))
		}
		for _, want := range words {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s does not show %q", name, want)
			}
		}
	}
}

func TestRecord(t *testing.T) {
	parts, err := record([]string{"sh", "-c", "test -t 1 && printf 'one\\ntwo'"})
	var s screen
	for _, p := range parts {
		s.write(p.text)
	}
	if err != nil || shown(&s) != "one|two" {
		t.Errorf("%v, %v", err, parts)
	}
	if _, err := record([]string{"false"}); err == nil {
		t.Error("a failure is not seen")
	}
}
