package door

import (
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// What peers that were not admitted can write into the log: so many lines at once, and one for each interval.
const (
	burst    = 20
	interval = time.Second
)

// Lines bounds the lines of a log. Its zero value can be used, by several goroutines.
type Lines struct {
	mu     sync.Mutex
	used   int       // lines of the burst
	since  time.Time // when used was right
	missed int
}

// Allow says whether a line may be written now, and how many were left out since the last one.
func (l *Lines) Allow() (missed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if back := int(now.Sub(l.since) / interval); back >= l.used {
		l.used, l.since = 0, now
	} else {
		l.used -= back
		l.since = l.since.Add(time.Duration(back) * interval)
	}
	if l.used >= burst {
		l.missed++
		return 0, false
	}
	l.used++
	missed, l.missed = l.missed, 0
	return missed, true
}

// Clip shortens what a peer calls itself to at most n bytes of valid text.
func Clip(s string, n int) string {
	const mark = "…"
	if len(s) > n {
		s = s[:n-len(mark)]
		for r, size := utf8.DecodeLastRuneInString(s); r == utf8.RuneError && size == 1; {
			s = s[:len(s)-1] // a character that was cut
			r, size = utf8.DecodeLastRuneInString(s)
		}
		s += mark
	}
	return strings.ToValidUTF8(s, "�")
}
