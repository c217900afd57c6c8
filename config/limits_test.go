package config

import (
	"errors"
	"testing"
	"time"
)

// Every limit takes what it says of itself, and refuses what is none.
func TestLimits(t *testing.T) {
	for i := range LimitTable {
		l := &LimitTable[i]
		values := map[string]map[string]string{
			"N":    {"0": "0", "7": "7", "-1": "", "x": "", "": "", "99999999999": ""},
			"SIZE": {"0": "0B", "3GiB": "3GiB", "1536MiB": "1536MiB", "-1": "", "much": "", "": ""},
			"TIME": {"0": "0s", "90s": "1m30s", "8h": "8h0m0s", "500ms": "", "-1s": "", "3": "", "": ""},
		}[l.Kind]
		if len(values) == 0 || l.Meaning == "" {
			t.Fatalf("%s has values of kind %q", l.Name, l.Kind)
		}
		for in, want := range values {
			limits := DefaultLimits()
			before := l.Text(&limits)
			err := l.Set(&limits, in)
			if (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrLimit) {
				t.Errorf("%s=%s: %v", l.Name, in, err)
			}
			if got := l.Text(&limits); err == nil && got != want || err != nil && got != before {
				t.Errorf("%s=%s is %s", l.Name, in, got)
			}
		}
		if found, ok := LimitNamed(l.Name); !ok || found != l {
			t.Errorf("%s is not found", l.Name)
		}
	}
	if _, ok := LimitNamed("max"); ok {
		t.Error("a limit that is none was found")
	}
	var l Limits
	for name, value := range map[string]string{
		"max-sessions-per-tenant": "3", "max-queue-per-tenant": "4", "max-nvml-sessions-per-tenant": "5", "max-vram": "1GiB",
		"max-vram-per-tenant": "4GiB",
		"max-host-memory":     "2GiB", "max-pinned-memory": "3GiB",
		"idle-timeout": "1h", "work-timeout": "2h",
	} {
		found, _ := LimitNamed(name)
		if err := found.Set(&l, value); err != nil {
			t.Error(err)
		}
	}
	if want := (Limits{3, 4, 5, GiB, 4 * GiB, 0, 2 * GiB, 3 * GiB, time.Hour, 2 * time.Hour}); l != want {
		t.Errorf("%+v", l)
	}
}
