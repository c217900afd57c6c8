package transport

import (
	"fmt"
	"strconv"
	"time"
)

// Queued is how a client stands that waits for a place on a server, as the server says it every now and then.
type Queued struct {
	Place  int           // from 1
	Of     int           // how many wait
	Wait   time.Duration `json:",omitempty"` // about how long it may take; 0: not known
	Reason string        `json:",omitempty"` // why there is no place
}

// Bounds of what a server may say of its queue.
const (
	MaxWaiting  = 4 << 10 // bytes of JSON
	maxQueue    = 1 << 20
	LongestWait = 30 * 24 * time.Hour // that a client waits, and that an estimate says
)

// Times of a client that waits. The server speaks at least every WaitBeat, which is a sign of life: the client waits
// for it as long as for any answer ([HandshakeTimeout]). Whoever has a place within WaitQuiet hears nothing.
const (
	WaitQuiet = time.Second
	WaitBeat  = 5 * time.Second
)

// check says what is wrong with it.
func (q *Queued) check() error {
	switch {
	case q == nil:
		return malformed("the server lets the client wait and does not say where")
	case q.Place < 1 || q.Of < q.Place || q.Of > maxQueue:
		return malformed("number %d of %d in the queue", q.Place, q.Of)
	case q.Wait < 0 || q.Wait > LongestWait:
		return malformed("%v to wait", q.Wait)
	}
	return nil
}

// String is "third in the queue, about 40 s".
func (q Queued) String() string {
	s := ordinal(q.Place) + " in the queue"
	if q.Wait > 0 {
		s += ", about " + roughly(q.Wait)
	}
	return s
}

// ordinal is "third", or "23rd".
func ordinal(n int) string {
	words := [...]string{"first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"}
	if n >= 1 && n <= len(words) {
		return words[n-1]
	}
	ending := "th"
	if n/10%10 != 1 {
		switch n % 10 {
		case 1:
			ending = "st"
		case 2:
			ending = "nd"
		case 3:
			ending = "rd"
		}
	}
	return strconv.Itoa(n) + ending
}

// roughly is a time as one guesses it.
func roughly(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%d s", max(1, d.Round(time.Second)/time.Second))
	case d < time.Minute-5*time.Second/2:
		return fmt.Sprintf("%d s", d.Round(5*time.Second)/time.Second)
	case d < time.Hour-time.Minute/2:
		return fmt.Sprintf("%d min", max(1, d.Round(time.Minute)/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", max(1, d.Round(time.Hour)/time.Hour))
	}
	return fmt.Sprintf("%d days", d.Round(24*time.Hour)/(24*time.Hour))
}

// sayAgain is how long a person who waits is left alone, at least.
const sayAgain = 10 * time.Second

// Teller gives a [Hello.Waiting] that tells a person how the client stands: at once, then when something has changed,
// and not too often.
func Teller(server string, say func(line string)) func(Queued) {
	var said string
	var last time.Time
	return func(q Queued) {
		line := fmt.Sprintf("waiting for a place on %s: %v", server, q)
		if line == said || !last.IsZero() && time.Since(last) < sayAgain {
			return
		}
		first := last.IsZero()
		said, last = line, time.Now()
		if first && q.Reason != "" {
			line += " (" + q.Reason + ")"
		}
		say(line)
	}
}
