package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// scale says how big the simulated cluster is: SCUDA_SCALE=SERVERS,CLAIMS; a small one where nothing is said.
func scale(t *testing.T) (servers, claims int, long bool) {
	text := os.Getenv("SCUDA_SCALE")
	if text == "" {
		return 20, 100, false
	}
	if _, err := fmt.Sscanf(text, "%d,%d", &servers, &claims); err != nil {
		t.Fatalf("SCUDA_SCALE=%q: %v; write SERVERS,CLAIMS", text, err)
	}
	return servers, claims, true
}

// difference is what was asked of the interface between two counts.
func difference(before, after map[string]int) (text string, sum int) {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if n := after[what] - before[what]; n > 0 {
			parts, sum = append(parts, fmt.Sprintf("%s %d", what, n)), sum+n
		}
	}
	return strings.Join(parts, ", "), sum
}

// phase has figures of one printed: how long it took, and what it cost. The first is what it waits for.
func (w *world) phase(what string, do func()) (calls int, took time.Duration) {
	w.Helper()
	before, began, questions := w.api.Calls(), time.Now(), w.questions()
	cpu, _, _ := w.used()
	do()
	took = time.Since(began)
	after, now, most := w.used()
	text, calls := difference(before, w.api.Calls())
	w.Logf("%s: %.1f s, controller %.1f s of processor time (%.0f %%), %d MiB (%d at most), %.0f questions/s to servers, "+
		"%d API calls (%.1f/s): %s", what, took.Seconds(), (after - cpu).Seconds(), 100*(after-cpu).Seconds()/took.Seconds(),
		now, most, float64(w.questions()-questions)/took.Seconds(), calls, float64(calls)/took.Seconds(), text)
	return calls, took
}

// A controller with many servers and claims: what it asks of the cluster, and that nothing is left at the end. Nobody
// schedules here: the claims come with their allocation.
func TestScale(t *testing.T) {
	servers, claims, long := scale(t)
	w := newWorld(t, servers, 8, strings.Fields(os.Getenv("SCUDA_SCALE_ARGS"))...)
	ready := w.follow(t.Context())
	w.start()
	rest := 3 * time.Second
	if long {
		rest = 30 * time.Second
	}
	w.phase("publish all servers", func() {
		w.await("slices", func() bool { return w.api.Count("resourceslices") == servers })
	})
	calls, _ := w.phase("rest, no claims", func() { time.Sleep(rest) })
	if calls > 2*int(rest/time.Second)+2 { // the leader's lock is renewed every 2 s, by a get and an update
		t.Errorf("a controller with nothing to do asks %d times in %v", calls, rest)
	}
	calls, took := w.phase(fmt.Sprintf("%d claims at once", claims), func() {
		for n := range claims {
			w.place(fmt.Sprintf("c%d", n), n)
		}
		w.await("claims", func() bool { return ready.count() == claims })
	})
	t.Logf("%.1f claims/s, %.1f calls a claim", float64(claims)/took.Seconds(), float64(calls)/float64(claims))
	if calls > 5*claims+50 {
		t.Errorf("%d calls for %d claims", calls, claims)
	}
	w.phase("rest, all claims", func() { time.Sleep(rest) })
	w.phase("one claim more", func() {
		w.place("one", 0)
		w.await("it", func() bool { _, ok := ready.when("one"); return ok })
	})
	w.phase("one server drains", func() {
		_, version := w.api.List("resourceslices")
		g := w.servers[len(w.servers)/2]
		g.mu.Lock()
		g.status.Draining = true
		g.mu.Unlock()
		w.await("its taint", func() bool { list, _, _ := w.api.Since("resourceslices", version); return len(list) > 0 })
	})

	w.stop()
	w.start()
	w.phase("another controller begins: one claim more", func() {
		w.place("two", 1)
		w.await("it", func() bool { _, ok := ready.when("two"); return ok })
	})
	w.phase("after that", func() { time.Sleep(rest) })
	held, made := w.held()
	if held != claims+2 || made != claims+2 || w.api.Count("secrets") != claims+2 {
		t.Errorf("%d leases (%d made), %d secrets for %d claims", held, made, w.api.Count("secrets"), claims+2)
	}
	w.phase("all claims go", func() {
		for n := range claims {
			w.api.Remove("resourceclaims", "users", fmt.Sprintf("c%d", n))
		}
		w.api.Remove("resourceclaims", "users", "one")
		w.api.Remove("resourceclaims", "users", "two")
		w.await("leases", func() bool { n, _ := w.held(); return n == 0 && w.api.Count("secrets") == 0 })
	})
}
