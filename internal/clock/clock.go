// Package clock says moments to other processes of the same machine, and to a process that comes after this one. What
// it says is not changed by setting the clock: it is CLOCK_MONOTONIC, which Go's time.Time has beside the time of day,
// and loses where it is written down. That clock stands still while the machine sleeps.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// One moment by both.
var (
	start = time.Now()
	began = monotonic()
)

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // which every Linux has
	return t.Nano()
}

// Stamp says a moment as a number, which all processes of the machine understand.
func Stamp(t time.Time) int64 { return began + int64(t.Sub(start)) }

// At is the moment that a number says, with its time of day by the clock as it is set now.
func At(stamp int64) time.Time {
	now := time.Now()
	return now.Add(time.Duration(stamp - Stamp(now)))
}
