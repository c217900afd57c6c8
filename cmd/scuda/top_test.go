package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/server/admin"
	record "scuda.dev/scuda/server/usage"
)

// watched gives a viewer of three sessions, of which the second makes 1000 calls a second.
func watched(out *strings.Builder) *viewer {
	began := time.Now()
	return &viewer{out: out, size: func() (int, int) { return 100, 24 },
		ask: func(context.Context) (*admin.Status, []admin.Session, error) {
			n := uint64(time.Since(began) / time.Millisecond)
			return &admin.Status{Version: "9", Address: "h:1", CUDA: admin.Places{Taken: 2, Limit: 4}, Draining: true},
				[]admin.Session{
					{ID: "aaaaaaaa1", Program: "old", Calls: new(uint64(7)), GPUs: []admin.Use{{Memory: 1 << 20}}},
					{ID: "bbbbbbbb2", Program: "busy", Calls: &n},
					{ID: "cccccccc3", Program: "large", Kind: admin.KindNVML, GPUs: []admin.Use{{Memory: 1 << 30}}},
				}, nil
		}}
}

// order is in which order the programs stand in the last table that was written.
func order(text string) (list []string) {
	text = text[strings.LastIndex(text, "PROGRAM"):]
	for line := range strings.Lines(text) {
		for _, p := range []string{"old", "busy", "large"} {
			if strings.Contains(line, " "+p+" ") {
				list = append(list, p)
			}
		}
	}
	return list
}

func TestTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		v := watched(&out)
		tick, pressed := make(chan time.Time), make(chan byte)
		ended := make(chan error, 1)
		go func() { ended <- v.watch(t.Context(), tick, pressed) }()
		step := func(key byte, want string) {
			t.Helper()
			synctest.Wait()
			time.Sleep(time.Second)
			if key == 0 {
				tick <- time.Now()
			} else {
				pressed <- key
			}
			synctest.Wait()
			if got := strings.Join(order(out.String()), " "); got != want {
				t.Errorf("%q: %s, not %s", key, got, want)
			}
		}
		step(0, "old busy large")
		if !strings.Contains(out.String(), " 1000 ") || !strings.Contains(out.String(), "takes no new ones") {
			t.Errorf("the table is\n%s", &out)
		}
		step('m', "large old busy")
		step('c', "busy old large")
		step('x', "busy old large")
		step('a', "old busy large")
		pressed <- 'q'
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(out.String(), "\x1b[?1049h") || !strings.HasSuffix(out.String(), "\x1b[?1049l") {
			t.Error("the terminal is not as it was")
		}
	})
}

// What has no room is counted, and nothing is written below the last line.
func TestTopOnASmallTerminal(t *testing.T) {
	var out strings.Builder
	v := watched(&out)
	v.size = func() (int, int) { return 40, 6 }
	if err := v.draw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 5 || !strings.Contains(got, "… and 2 more") {
		t.Errorf("%q", got)
	}
	for line := range strings.Lines(strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(out.String())) {
		if n := len([]rune(strings.TrimSpace(line))); n > 40 {
			t.Errorf("%d characters: %q", n, line)
		}
	}
}

// An error of the server ends the view, and leaves the terminal as it was.
func TestTopWithoutServer(t *testing.T) {
	var out strings.Builder
	v := watched(&out)
	v.ask = func(context.Context) (*admin.Status, []admin.Session, error) { return nil, nil, admin.ErrNoServer }
	if err := v.watch(t.Context(), nil, nil); !errors.Is(err, admin.ErrNoServer) {
		t.Errorf("%v", err)
	}
	if !strings.HasSuffix(out.String(), "\x1b[?1049l") {
		t.Errorf("%q", &out)
	}
}

// How long sessions have waited for their clients is shown where some do, and how long they will.
func TestAwayInTables(t *testing.T) {
	since := time.Now().Add(-70 * time.Second)
	list := []admin.Session{
		{ID: "aaaaaaaaaa", Kind: admin.KindCUDA, State: admin.StateIdle},
		{ID: "bbbbbbbbbb", Kind: admin.KindCUDA, State: admin.StateAway,
			Away: &admin.Away{Since: since, Seconds: 70, Until: since.Add(2 * time.Minute)}},
	}
	columns, rows := sessionTable(list)
	var b strings.Builder
	if err := writeTable(&b, 0, columns, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" AWAY  LEFT\n", " away ", " 1m10s   50s\n", " -     -\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	if columns, _ := sessionTable(list[:1]); len(columns) != len(sessionColumns) {
		t.Errorf("%d columns where all have their clients", len(columns))
	}
	if got := summary(&admin.Status{Away: 2}); !strings.Contains(got, "; 2 sessions without a client") {
		t.Errorf("%q", got)
	}
}

// What came of turns is shown where some session took them, and sorts.
func TestTurnsInTables(t *testing.T) {
	list := []admin.Session{
		{ID: "aaaaaaaaaa", Kind: admin.KindCUDA, GPUShare: .254, Turn: 61, TurnWait: 3, Label: "job", Lease: "1"},
		{ID: "bbbbbbbbbb", Kind: admin.KindNVML}, {ID: "cccccccccc", Kind: admin.KindCUDA, GPUShare: 1, TurnWait: 9},
	}
	columns, rows := sessionTable(list)
	var b strings.Builder
	if err := writeTable(&b, 0, columns, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		" GPU% ", " TURNS  WAITED  LEASE\n", " 25 ", " 1m01s      3s  job\n", "      -       -  -\n", " 100 ",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	var v viewer
	for key, first := range map[byte]string{'g': "cccccccccc", 'w': "cccccccccc", 'a': "aaaaaaaaaa"} {
		sorted := slices.Clone(list)
		v.by = key
		if v.sort(sorted, nil); sorted[0].ID != first {
			t.Errorf("%c: %s is first", key, sorted[0].ID)
		}
	}
	if columns, _ := sessionTable(list[1:2]); len(columns) != len(sessionColumns) {
		t.Errorf("%d columns where nobody takes turns", len(columns))
	}
	b.Reset()
	sums := []serverSum{{Sum: record.Sum{Key: "a", Used: record.Used{Turn: 61, Waited: 2}}}, {Sum: record.Sum{Key: "b"}}}
	if err := printUsage(&b, "tenant", sums); err != nil || !strings.Contains(b.String(), " TURNS  WAITED\n") ||
		!strings.Contains(b.String(), " 1m01s      2s\n") {
		t.Errorf("%v\n%s", err, &b)
	}
	b.Reset()
	if err := printUsage(&b, "tenant", sums[1:]); err != nil || strings.Contains(b.String(), "TURNS") {
		t.Errorf("%v\n%s", err, &b)
	}
}

func TestSessionTexts(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0s", 59.9: "59s", 60: "1m00s", 3599: "59m59s", 3600: "1h00m", 172799: "47h59m", 172800: "2d00h", 9e6: "104d04h",
	} {
		if got := age(seconds); got != want {
			t.Errorf("%v s: %s, not %s", seconds, got, want)
		}
	}
	list := []admin.Session{
		{ID: "aaaaaaaaaab", Host: "h\x1b[2J", Program: "p\nq", GPUs: []admin.Use{{Index: 1, Memory: 1 << 20}, {Index: 3}}},
		{ID: "aaaaaaaaaac", Address: "10.0.0.1", User: "u", Quota: 1 << 30, Counted: new(uint64(0)), PID: 5},
	}
	rows := sessionRows(list)
	for i, want := range []string{
		"aaaaaaaaaab  h?[2J p q - 1,3 - 1 MiB -  0s", "aaaaaaaaaac  u@10.0.0.1 - 5 - - 0 B of 1 GiB -  0s",
	} {
		if got := strings.Join(rows[i], " "); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
