package lease

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// text is what a book with a lease of each state keeps.
func text(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leases")
	b := open(t, path)
	l := of("vision")
	l.Label, l.GPUs = "job 7", []string{UUID([16]byte{1})}
	grant(t, b, l, time.Hour)
	l, _ = grant(t, b, of("text"), time.Hour)
	if _, err := b.Revoke(l.ID, "why"); err != nil {
		t.Fatal(err)
	}
	b2, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b2)
}

func TestDamagedFile(t *testing.T) {
	good := text(t)
	line, _, _ := strings.Cut(good, "\n")
	change := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("%s is not in\n%s", from, good)
		}
		return strings.Replace(good, from, to, 1)
	}
	for name, c := range map[string]struct{ text, says string }{
		"no JSON":      {good + "x\n", "line 3: "},
		"behind":       {line + "{}\n", "line 1: something stands behind"},
		"twice":        {"\n" + line + "\n" + line, "line 3: lease "},
		"later field":  {change(`{"id"`, `{"later":1,"id"`), `unknown field "later"`},
		"bad class":    {change(`"class":"normal"`, `"class":"top"`), "is none; write low, normal or high"},
		"bad tenant":   {change(`"tenant":"`, `"tenant":"/`), "bad name"},
		"bad hash":     {change(`"credential_sha256":"`, `"credential_sha256":"zz`), "64 hexadecimal"},
		"bad state":    {change(`"over":"revoked"`, `"over":"lost"`), "neither expired nor revoked"},
		"bad GPU":      {change(`"GPU-01`, `"GPU-zz`), "no GPU's UUID"},
		"bad id":       {change(`"id":"`, `"id":"0`), "no lease's id"},
		"no time":      {change(`"expires":"2`, `"expires":"1`), "before it begins"},
		"a cut line":   {good[:len(good)/3], "line 1: "},
		"too long":     {strings.Repeat(" ", mostBytes+1), "the limit is"},
		"bad encoding": {change(`job 7`, `job\u001b`), "cannot be printed"},
	} {
		path := filepath.Join(t.TempDir(), "leases")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(text(f)))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseFile(b)
		if err != nil {
			if !errors.Is(err, ErrFile) {
				t.Errorf("%v", err)
			}
			return
		}
		once, err := appendFile(nil, list)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseFile(once)
		if err != nil || len(again) != len(list) {
			t.Fatalf("%q is read as %d leases, not %d: %v", once, len(again), len(list), err)
		}
		if twice, _ := appendFile(nil, again); !bytes.Equal(once, twice) {
			t.Errorf("%q becomes %q", once, twice)
		}
	})
}
