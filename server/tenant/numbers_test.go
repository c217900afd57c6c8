package tenant

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func numbers(t *testing.T, folder string, first, last uint32) *Numbers {
	t.Helper()
	n, err := OpenNumbers(folder, first, last, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNumbers(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "state")
	const first, last = 5000, 5099
	n, seen := numbers(t, folder, first, last), map[uint32]string{}
	of := map[string]uint32{}
	for i := range 99 {
		name := fmt.Sprintf("tenant-%d", i)
		uid, err := n.Of(name)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := n.Of(name); again != uid {
			t.Errorf("%s has %d and %d", name, uid, again)
		}
		if other, taken := seen[uid]; taken || uid <= first || uid > last {
			t.Errorf("%s has %d, which is no tenant's or %q's", name, uid, other)
		}
		seen[uid], of[name] = name, uid
	}
	if uid, err := n.Of(""); uid != first || err != nil {
		t.Errorf("nobody has %d, %v", uid, err)
	}
	if _, err := n.Of("one more"); !errors.Is(err, ErrNumbers) || !strings.Contains(err.Error(), "--worker-uids") {
		t.Errorf("a number beyond the range: %v", err)
	}
	after := numbers(t, folder, first, last)
	for name, uid := range of {
		if got, err := after.Of(name); got != uid || err != nil {
			t.Errorf("%s had %d, and has %d after a restart (%v)", name, uid, got, err)
		}
	}
	// another range: numbers outside of it are not used
	moved := numbers(t, folder, 7000, 7500)
	for name := range of {
		if got, err := moved.Of(name); got < 7001 || got > 7500 || err != nil {
			t.Errorf("%s has %d, %v", name, got, err)
		}
	}
}

// Two servers that have not seen the same tenants agree as long as nothing collides.
func TestNumbersAgree(t *testing.T) {
	a, b := numbers(t, "", 200_000, 209_999), numbers(t, "", 200_000, 209_999)
	x, _ := a.Of("alice")
	if _, err := b.Of("bob"); err != nil {
		t.Fatal(err)
	}
	if y, _ := b.Of("alice"); x != y {
		t.Errorf("alice has %d and %d", x, y)
	}
}

func TestDamagedNumbers(t *testing.T) {
	for name, text := range map[string]string{
		"no number": "alice\n", "a word": "alice many\n", "a bad name": "../x 5001\n",
		"too long": strings.Repeat("a", maxBytes+1),
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, numbersFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenNumbers(folder, 5000, 5010, nil); !errors.Is(err, ErrFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	folder := t.TempDir() // one number for two, and nobody's
	text := "alice 5001\nbob 5001\ncarol 5000\nalice 5002\n"
	if err := os.WriteFile(filepath.Join(folder, numbersFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := numbers(t, folder, 5000, 5010)
	alice, _ := n.Of("alice")
	bob, _ := n.Of("bob")
	carol, _ := n.Of("carol")
	if alice != 5001 || bob == alice || carol == 5000 || carol == bob || carol == alice {
		t.Errorf("alice %d, bob %d, carol %d", alice, bob, carol)
	}
}
