package clock

import (
	"strings"
	"testing"
	"time"
)

// A moment is the same when it comes back, and can be compared whatever the clock says.
func TestStamp(t *testing.T) {
	for _, d := range []time.Duration{0, -3 * time.Hour, time.Minute} {
		when := time.Now().Add(d)
		got := At(Stamp(when))
		if off := got.Sub(when); off != 0 {
			t.Errorf("%v: %v later", d, off)
		}
		if !strings.Contains(got.String(), "m=") {
			t.Errorf("%v is a time of day only", got)
		}
		if off := got.Round(0).Sub(when.Round(0)).Abs(); off > 10*time.Second {
			t.Errorf("its time of day is %v off", off)
		}
	}
	before := monotonic()
	if s, after := Stamp(time.Now()), monotonic()+int64(time.Second); s < before-int64(time.Second) || s > after {
		t.Errorf("the stamp %d is not between %d and %d", s, before, after)
	}
}
