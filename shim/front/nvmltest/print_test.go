package nvmltest

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"scuda.dev/scuda/transport"
)

// logged gives what the front's log has of each of some texts that a server may have sent.
func logged(t *testing.T, texts []string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "print")
	cc := exec.Command("cc", "-o", program, "testdata/print.c", "../base/common.c", "-I", "..", "-I", "../base", "-ldl")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env, cmd.Stdin, cmd.Stderr = environment(t), strings.NewReader(strings.Join(texts, "\n")+"\n"), &errs
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(errs.String(), "\n"), "\n")
	if len(lines) != len(texts) {
		t.Fatalf("%d lines of %d texts", len(lines), len(texts))
	}
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "scuda: error: ")
	}
	return lines
}

// TestPrintedAlike: the front's log shows no character of a server's text that Go's rule takes for a control character,
// and shows the letters that it has.
func TestPrintedAlike(t *testing.T) {
	const inLine = 200
	never := []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs}
	var texts []string
	for r := rune(1); r <= unicode.MaxRune; {
		var b strings.Builder
		for n := 0; n < inLine && r <= unicode.MaxRune; r++ {
			if r != '\n' && utf8.ValidRune(r) {
				b.WriteRune(r)
				n++
			}
		}
		texts = append(texts, b.String())
	}
	for i, line := range logged(t, texts) {
		if !utf8.ValidString(line) {
			t.Errorf("%q is not UTF-8", line)
		}
		for _, r := range line {
			if unicode.In(r, never...) || r != ' ' && unicode.IsControl(r) {
				t.Errorf("%U is shown", r)
			}
		}
		for _, r := range texts[i] {
			if unicode.IsPrint(r) && !strings.ContainsRune(line, r) && r < 0xe0000 && r != utf8.RuneError {
				t.Errorf("%U is not shown", r)
			}
			if unicode.In(r, never...) && strings.ContainsRune(transport.Printable(string(r)), r) {
				t.Errorf("%U is printable for Go", r)
			}
		}
	}
}

// TestNoUTF8Printed: what is not UTF-8 is not shown, so that no terminal takes it for a character of another set.
func TestNoUTF8Printed(t *testing.T) {
	for i, c := range []struct{ text, want string }{
		{"a\x9b2Jb", "a?2Jb"},        // C1 in one byte
		{"\xc0\x9b", "??"},           // too long for what it says
		{"\xe0\x80\x9b", "???"},      // likewise
		{"\xf0\x80\x80\x9b", "????"}, // likewise
		{"\xed\xa0\x80", "???"},      // half of a pair
		{"\xf5\x80\x80\x80", "????"}, // beyond the end
		{"\xe2\x80", "??"},           // cut
		{"\xc3a", "?a"},              // cut by a letter
		{"né ✓ 日本 \U0001f600", "né ✓ 日本 \U0001f600"}, // letters
	} {
		if got := logged(t, []string{c.text})[0]; got != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
}
