package admin

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/server/usage"
)

func TestAskForUsage(t *testing.T) {
	f := &fake{}
	c, _ := offer(t, f, Options{})
	since := time.Date(2026, 1, 31, 12, 0, 0, 5, time.FixedZone("", 7200))
	for _, by := range usage.By() {
		u, err := c.Usage(t.Context(), since, by)
		if err != nil || u.Bad != 1 || len(u.Sums) != 1 || u.Sums[0].Key != by ||
			u.Sums[0].Program != "2026-01-31T10:00:00.000000005Z" || u.Sums[0].Sessions != 3 {
			t.Errorf("by %s: %+v, %v", by, u, err)
		}
	}
	var u Usage
	if err := c.ask(t.Context(), http.MethodGet, "/v1/usage", nil, &u); err != nil || u.Sums[0].Key != "tenant" ||
		u.Sums[0].Program != (time.Time{}).Format(time.RFC3339) {
		t.Errorf("where nothing is said: %+v, %v", u, err)
	}
	for _, refusal := range []error{ErrNoUsage, errors.New("the disk is gone")} {
		f.refuses = refusal
		_, err := c.Usage(t.Context(), since, "day")
		if err == nil || !strings.Contains(err.Error(), refusal.Error()) ||
			errors.Is(err, ErrNoUsage) != errors.Is(refusal, ErrNoUsage) {
			t.Errorf("%v: %v", refusal, err)
		}
	}
}

func FuzzUsageQuery(f *testing.F) {
	for _, s := range []string{"", "by=day&since=2026-01-31T00:00:00.5%2B02:00", "by=day;since=x", "%", "by", "&&=&"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		since, by, err := usageQuery(text)
		if err == nil && !slices.Contains(usage.By(), by) || err != nil && len(err.Error()) > 500+len(text) {
			t.Errorf("%q: %v, %q, %v", text, since, by, err)
		}
	})
}
