package config

import (
	"errors"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

func TestQueue(t *testing.T) {
	for s, want := range map[string]time.Duration{"": transport.LongestWait, "0": 0, "0s": 0, "30s": 30 * time.Second,
		"1h30m": 90 * time.Minute, "9999h": transport.LongestWait} {
		for _, s := range []string{s, " " + s + " "} {
			if d, err := ParseQueue(s); err != nil || d != want {
				t.Errorf("%q: %v, %v", s, d, err)
			}
		}
	}
	for _, s := range []string{"30", "-1s", "no", "s", "1d"} {
		if d, err := ParseQueue(s); !errors.Is(err, ErrQueue) {
			t.Errorf("%q: %v, %v", s, d, err)
		}
	}
	t.Setenv("SCUDA_SERVER", "127.0.0.1:1")
	t.Setenv("SCUDA_INSECURE", "1")
	t.Setenv("SCUDA_QUEUE", "soon")
	if _, err := ReadClient(); !errors.Is(err, ErrQueue) {
		t.Errorf("a setting that cannot be read: %v", err)
	}
}

func TestSize(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "7": 7, "7B": 7, "1KiB": 1 << 10, "3 MiB": 3 << 20, "4GiB": 4 << 30,
		"4g": 4 << 30, "2T": 2 << 40} {
		var b Size
		if err := b.Set(s); err != nil || uint64(b) != want {
			t.Errorf("%q: %d, %v", s, b, err)
		}
	}
	for _, s := range []string{"", "GiB", "-1", "1.5GiB", "4GB4", "99999999999TiB", "x"} {
		var b Size
		if err := b.Set(s); err == nil {
			t.Errorf("%q: %d", s, b)
		}
	}
	for b, want := range map[Size]string{0: "0 B", 1023: "1023 B", 1 << 30: "1 GiB", 150109880320: "139.8 GiB",
		1536: "1.5 KiB"} {
		if got := b.String(); got != want {
			t.Errorf("%d: %q, not %q", uint64(b), got, want)
		}
	}
}
