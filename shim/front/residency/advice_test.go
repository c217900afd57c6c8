package residency

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever is said of stretches of pages, each page knows what was said of it last, a stretch knows what all its pages
// have in common, and pages of which the same was said are one stretch.
func TestAnyAdvice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pages = 40
		var model [pages]said
		var all advices
		defer all.drop()
		stretch := func() (from, to int) {
			from = rapid.IntRange(0, pages-1).Draw(t, "from")
			return from, rapid.IntRange(from+1, pages).Draw(t, "to")
		}
		for range rapid.IntRange(0, 30).Draw(t, "times") {
			from, to := stretch()
			what, kind, id := rapid.IntRange(0, 3).Draw(t, "what"), rapid.IntRange(0, 3).Draw(t, "kind"),
				rapid.IntRange(0, 1).Draw(t, "id")
			change := func(s *said) {
				switch what {
				case 0:
					s.readMostly = id == 1
				case 1:
					s.preferred = place(kind, id)
				case 2:
					s.prefetched = place(kind, id)
				case 3:
					s.accessedBy ^= 1 << kind
				}
			}
			stretches := all.say(from, to, change)
			for i := range model[from:to] {
				change(&model[from+i])
			}
			least := 1
			for i := range pages - 1 {
				if model[i] != model[i+1] {
					least++
				}
			}
			if stretches > least+1 { // one may lie behind the last page
				t.Fatalf("%d stretches where %d would do", stretches, least)
			}
		}
		for i := range model {
			if got := all.at(i); got != model[i] {
				t.Fatalf("page %d: %+v, want %+v", i, got, model[i])
			}
		}
		from, to := stretch()
		want := model[from]
		preferred, prefetched := device(want.preferred), device(want.prefetched)
		for _, s := range model[from:to] {
			if device(s.preferred) != preferred {
				preferred = device(place(0, 0))
			}
			if device(s.prefetched) != prefetched {
				prefetched = device(place(0, 0))
			}
			if s.preferred != want.preferred {
				want.preferred = place(0, 0)
			}
			if s.prefetched != want.prefetched {
				want.prefetched = place(0, 0)
			}
			want.readMostly = want.readMostly && s.readMostly
			want.accessedBy &= s.accessedBy
		}
		if got, at, asked := all.of(from, to); got != want || at != preferred || asked != prefetched {
			t.Fatalf("pages %d to %d: %+v %d %d, want %+v %d %d", from, to, got, at, asked, want, preferred, prefetched)
		}
	})
}
