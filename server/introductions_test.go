package server

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A ticket is good once, and not any more when 64 later ones have been used.
func TestIntroductionTickets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n introductions
		used, highest := map[int]bool{}, -1
		for range 200 {
			ticket := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(max(0, highest-70), highest+70),
				rapid.Just(math.MaxInt-1)).Draw(t, "ticket")
			want := !used[ticket] && ticket > highest-64
			if got := n.take(ticket); got != want {
				t.Fatalf("ticket %d of %d: %t", ticket, highest, got)
			}
			used[ticket] = true
			highest = max(highest, ticket)
			if highest == math.MaxInt-1 {
				return
			}
		}
	})
}

// A session has many at once, and later as many as are added with time.
func TestIntroductionsOften(t *testing.T) {
	var n introductions
	now := time.Unix(1000, 0)
	all := func() (count int) {
		for n.may(now) {
			count++
		}
		return count
	}
	if got := all(); got != introductionsAtOnce {
		t.Errorf("%d at once", got)
	}
	for _, c := range []struct {
		pause time.Duration
		want  int
	}{
		{time.Second, 0}, {time.Minute/introductionsPerMinute - time.Second, 1}, {0, 0},
		{time.Minute, introductionsPerMinute}, {time.Hour, introductionsAtOnce}, {-time.Hour, 0},
	} {
		now = now.Add(c.pause)
		if got := all(); got != c.want {
			t.Errorf("%d after %v more, not %d", got, c.pause, c.want)
		}
	}
}
