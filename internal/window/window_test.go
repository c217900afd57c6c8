package window

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestWindows(t *testing.T) {
	for m := 2; m <= Most; m++ {
		end := uint64(Low)
		for n := range m {
			r, ok, err := Of(n, m)
			if err != nil || !ok || r.From != end || r.From%unit != 0 || r.To%unit != 0 {
				t.Fatalf("window %d of %d: %#x, %v, %v", n, m, r, ok, err)
			}
			// of GPUs with much memory, several times over
			if r.To-r.From < 5<<40 {
				t.Errorf("window %d of %d has %d GiB", n, m, (r.To-r.From)>>30)
			}
			end = r.To
		}
		if end > High || High-end >= uint64(m)*unit {
			t.Errorf("%d windows end at %#x", m, end)
		}
	}
	for _, m := range []int{0, 1} {
		if r, ok, err := Of(0, m); ok || err != nil || r != (Range{}) {
			t.Errorf("window 0 of %d: %#x, %v, %v", m, r, ok, err)
		}
	}
}

func TestWrongWindows(t *testing.T) {
	for _, w := range [][2]int{{1, 0}, {1, 1}, {2, 2}, {-1, 2}, {-1, 0}, {0, -1}, {0, Most + 1}, {3, Most + 1}, {16, 16}} {
		if _, ok, err := Of(w[0], w[1]); !errors.Is(err, ErrWrong) || ok {
			t.Errorf("window %d of %d: %v, %v", w[0], w[1], ok, err)
		}
	}
}

func TestHolds(t *testing.T) {
	r := Range{100, 200}
	for _, c := range []struct {
		at, n uint64
		want  bool
	}{{100, 100, true}, {100, 101, false}, {99, 1, false}, {199, 1, true}, {200, 0, true}, {150, ^uint64(0), false}} {
		if r.Holds(c.at, c.n) != c.want {
			t.Errorf("%d bytes at %d: %v", c.n, c.at, !c.want)
		}
	}
	for _, o := range []Range{{0, 101}, {199, 300}, {0, 300}, {120, 130}} {
		if !r.Overlaps(o) || !o.Overlaps(r) {
			t.Errorf("%v does not overlap", o)
		}
	}
	for _, o := range []Range{{0, 100}, {200, 300}} {
		if r.Overlaps(o) || o.Overlaps(r) {
			t.Errorf("%v overlaps", o)
		}
	}
}

// The front has its own memory where no server's window is, and where servers leave room for it.
func TestClientMemory(t *testing.T) {
	for _, c := range []struct {
		file, name string
		want       uint64
	}{
		{"../../shim/front/calls/calls.h", "SCUDA_PINNED_FIRST", ClientLow},
		{"../../shim/front/uvm/pager.h", "SCUDA_MANAGED_END", ClientHigh},
	} {
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^#define ` + c.name + ` (0x[0-9a-f]+)u`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s: no %s", c.file, c.name)
		}
		if got, err := strconv.ParseUint(strings.TrimPrefix(string(m[1]), "0x"), 16, 64); err != nil || got != c.want {
			t.Errorf("%s: %s is %#x, want %#x (%v)", c.file, c.name, got, c.want, err)
		}
	}
	if ClientLow < High {
		t.Error("a server's window holds memory of the client's")
	}
}
