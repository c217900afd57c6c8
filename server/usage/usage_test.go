package usage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func record(session, tenant string, to time.Time, gpu float64) *Record {
	return &Record{From: to.Add(-time.Minute), To: to, Session: session, Tenant: tenant, Program: "train", End: "closed",
		Used: Used{Seconds: 60, GPU: gpu, Estimated: true, Memory: 60 << 20, ToDevice: 3, ToHost: 4, Calls: 5}}
}

// A record is one line, whatever a client calls itself.
func TestRecord(t *testing.T) {
	r := record("s", "a", start, 30)
	r.User, r.Host, r.Program = strings.Repeat("\x00", 1000), "a\nb\"", strings.Repeat("é", 1000)
	r.Lease, r.Label = "3f2a61bd09e4c775", strings.Repeat("\x00", 1000)
	b, err := Append(nil, r)
	if err != nil || len(b) > MaxLine || bytes.Count(b, []byte("\n")) != 1 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	got, err := Parse(b)
	want := *r
	want.User, want.Program = strings.Repeat("\x00", maxText), strings.Repeat("é", maxText/2)
	want.Label = strings.Repeat("\x00", maxText)
	if d := cmp.Diff(&want, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, bad := range []string{"", "{}", "[]", `{"session":"s"}`, string(b[:len(b)/2]), strings.Repeat(" ", MaxLine+1),
		`{"session":"s","from":"2026-01-02T00:00:00Z","to":"2026-01-01T00:00:00Z"}`,
		`{"session":"s","from":"2026-01-02T00:00:00Z","to":"2026-01-03T00:00:00Z","gpu_seconds":-1}`} {
		if _, err := Parse([]byte(bad)); !errors.Is(err, ErrRecord) {
			t.Errorf("%.60q: %v", bad, err)
		}
	}
}

func TestMeter(t *testing.T) {
	m := NewMeter(start)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for i, c := range []struct {
		at   int
		s    Sample
		want Used
	}{
		{10, Sample{Active: at(4), Memory: 100, ToDevice: 5, Calls: 2}, Used{10, 4, true, 0, 5, 0, 2, 0, 0}},
		{20, Sample{Active: at(4), Memory: 200, ToDevice: 5, Calls: 2}, Used{10, 0, true, 1000, 0, 0, 0, 0, 0}},
		{30, Sample{Active: at(21), Busy: true, ToDevice: 7, ToHost: 1, Calls: 3}, Used{10, 10, true, 2000, 2, 1, 1, 0, 0}},
		{25, Sample{Active: at(99), ToDevice: 1}, Used{0, 0, true, 0, 0, 0, 0, 0, 0}}, // a clock and counters that go back
		{40, Sample{Active: at(99), ToDevice: 1}, Used{10, 10, true, 0, 0, 0, 0, 0, 0}},
		// busy all the time, and for eight seconds of it in turns, of which it had two and waited for five
		{50, Sample{Busy: true, Turn: 2 * time.Second, Waited: 5 * time.Second, Taken: 8 * time.Second},
			Used{10, 4, true, 0, 0, 0, 0, 2, 5}},
		// it takes turns all the time, and had no work
		{60, Sample{Active: at(40), Turn: 2 * time.Second, Waited: 5 * time.Second, Taken: 18 * time.Second},
			Used{10, 0, true, 0, 0, 0, 0, 0, 0}},
		// never more than all of the time, whatever is said
		{70, Sample{Turn: 99 * time.Second, Waited: 99 * time.Second, Taken: 99 * time.Second},
			Used{10, 10, true, 0, 0, 0, 0, 10, 10}},
		{80, Sample{Turn: time.Second}, Used{10, 0, true, 0, 0, 0, 0, 0, 0}}, // figures that go back
	} {
		if got := m.Sample(at(c.at), c.s); got != c.want {
			t.Errorf("%d: %+v, not %+v", i, got, c.want)
		}
	}
	from, to, used := m.Cut()
	if want := (Used{80, 38, true, 3000, 7, 1, 3, 12, 15}); from != start || to != at(80) || used != want {
		t.Errorf("%v to %v: %+v", from, to, used)
	}
	if from, _, used := m.Cut(); from != at(80) || used != (Used{Estimated: true}) || m.Since() != at(80) {
		t.Errorf("%v: %+v after a cut", from, used)
	}
}

// A meter goes on in another process where it was, whatever the clock is set to meanwhile.
func TestMeterGoesOn(t *testing.T) {
	began := time.Now()
	text, err := json.Marshal(NewMeter(began).State())
	var s State
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := Resume(s)
	if !strings.Contains(m.last.String(), " m=") {
		t.Errorf("its last sample was at a time of day: %v", m.last)
	}
	if got := m.Sample(began.Add(10*time.Second), Sample{Busy: true}); got.Seconds != 10 || got.GPU != 10 {
		t.Errorf("%+v in ten seconds", got)
	}
}

func TestTotals(t *testing.T) {
	var all Totals
	all.Add("a", Used{GPU: 1})
	all.Add("a", Used{GPU: 2})
	for i := range 2 * maxTenants {
		all.Add(string(rune('א'+i)), Used{GPU: 1})
	}
	if got := all.All(); len(got) != maxTenants+1 || got["a"].GPU != 3 || got[Others].GPU != maxTenants+1 {
		t.Errorf("%d tenants, %v, %v", len(got), got["a"], got[Others])
	}
}

// sum is what a log has by a key.
func sum(t *testing.T, path, by string, since time.Time) (list []Sum, bad int) {
	t.Helper()
	a := NewAdder(by)
	bad, err := Records(t.Context(), path, since, a.Add)
	if err != nil {
		t.Fatal(err)
	}
	return a.Sums(), bad
}

func TestLog(t *testing.T) {
	path := FileOf(t.TempDir(), 14833)
	if _, err := Records(t.Context(), path, start, func(*Record) {}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
	for i := range 2 { // a server that is started again goes on
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		at := start.Add(time.Duration(i) * 24 * time.Hour)
		for _, r := range []*Record{
			record("1", "a", at, 1), record("2", "b", at.Add(time.Hour), 5), record("1", "a", at, 2),
		} {
			if err := l.Write(r); err != nil {
				t.Error(err)
			}
		}
		l.Close()
		l.Close()
		if err := l.Write(record("3", "a", at, 1)); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("a closed log: %v", err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(`{"half of a`) // as a server leaves it that dies
		f.Close()
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	list, bad := sum(t, path, "tenant", time.Time{})
	if bad != 2 || len(list) != 2 || list[0].Key != "b" || list[0].GPU != 10 || list[1].GPU != 6 ||
		list[1].Sessions != 1 || list[1].ToDevice != 12 || !list[1].Estimated {
		t.Errorf("%+v, %d bad", list, bad)
	}
	if list, _ := sum(t, path, "session", start.Add(2*time.Hour)); len(list) != 2 || list[1].Key != "1" ||
		list[1].GPU != 3 || list[1].Tenant != "a" || list[1].Program != "train" {
		t.Errorf("%+v", list)
	}
	if list, _ := sum(t, path, "day", time.Time{}); len(list) != 2 || list[0].Key > list[1].Key ||
		list[0].Sessions != 2 {
		t.Errorf("%+v", list)
	}
	var none *Log
	if err := none.Write(record("1", "a", start, 1)); err != nil {
		t.Error(err)
	}
	none.Close()
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a folder is a log")
	}
}

// A log stays within its bounds, and what was before the bound is there as long as it may be.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.age = 1 << 62
	l.most = 2000
	for i := range 100 {
		if err := l.Write(record(string(rune('א'+i)), "a", start.Add(time.Duration(i)*time.Second), 1)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != Files+1 {
		t.Errorf("%d files, %v", len(files), err)
	}
	var order []time.Time
	bad, err := Records(t.Context(), path, time.Time{}, func(r *Record) { order = append(order, r.To) })
	if err != nil || bad != 0 || len(order) < Files*2 || !slices.IsSortedFunc(order, time.Time.Compare) ||
		!order[len(order)-1].Equal(start.Add(99*time.Second)) {
		t.Errorf("%d records, %d bad, %v", len(order), bad, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > l.most || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %d bytes, %v", f, info.Size(), err)
		}
	}
}

func TestRotationByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 3 {
			if err := l.Write(record("1", "a", time.Now(), 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(MaxAge * 2 / 3)
		}
		if _, err := os.Stat(path + ".1"); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path + ".2"); !errors.Is(err, fs.ErrNotExist) {
			t.Error("the file was exchanged too soon")
		}
	})
}

// What is told apart has a bound, and who does not want to know any more is not read for.
func TestBounds(t *testing.T) {
	a := NewAdder("session")
	for i := range MaxSums + 3 {
		a.Add(record(strconv.Itoa(i), "a", start, 1))
	}
	sums := a.Sums()
	if x := sums[0]; len(sums) != MaxSums+1 || x.Key != Others || x.Sessions != 3 || x.GPU != 3 || x.Tenant != "" {
		t.Errorf("%d sums, %+v", len(sums), x)
	}
	l, err := Open(FileOf(t.TempDir(), 1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Write(record("1", "a", start, 1)); err != nil {
		t.Fatal(err)
	}
	n := 0
	count := func(*Record) { n++ }
	if _, err := l.Records(t.Context(), start, count); err != nil || n != 1 {
		t.Errorf("%d records, %v", n, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Records(gone, start, count); !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("%d records, %v", n, err)
	}
}

// Whatever a file has: what is read of it can be written, and the rest is counted.
func FuzzRecords(f *testing.F) {
	good, err := Append(nil, record("1", "a", start, 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(good, good[:20]...))
	f.Add(append(bytes.Repeat([]byte("x"), 3*MaxLine), append([]byte("\n"), good...)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		good := 0
		a := NewAdder("tenant")
		bad, err := read(t.Context(), bytes.NewReader(b), time.Time{}, func(r *Record) {
			good++
			a.Add(r)
			line, err := Append(nil, r)
			if err != nil || len(line) > MaxLine {
				t.Errorf("%d bytes, %v", len(line), err)
			} else if _, err := Parse(line); err != nil {
				t.Error(err)
			}
		})
		if err != nil || good+bad > bytes.Count(b, []byte("\n"))+1 {
			t.Errorf("%d records, %d bad, %v", good, bad, err)
		}
		a.Sums()
	})
}
