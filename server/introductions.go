package server

import "time"

// A session may have its server connect to others so often: some times at once, as a program has up to
// [transport.MaxServers], and then as often as two servers that keep losing each other are to try again.
const (
	introductionsAtOnce    = 64
	introductionsPerMinute = 16
)

// introductions are those that a session has had. The zero value is of a new session. sessions.mu guards it.
type introductions struct {
	Next int    `json:"n"` // one more than the highest ticket, which is less than [math.MaxInt]
	Used uint64 `json:"u"` // tickets: bit i is that of Next-1-i. Those further below are not taken any more

	spent int       // of introductionsAtOnce, which is not told to the next supervisor
	since time.Time // when that was counted
}

// take uses up a ticket and says whether it was good.
func (n *introductions) take(ticket int) bool {
	if ticket >= n.Next {
		n.Used = n.Used<<(ticket-n.Next+1) | 1
		n.Next = ticket + 1
		return true
	}
	bit := uint64(1) << (n.Next - 1 - ticket)
	if bit == 0 || n.Used&bit != 0 {
		return false
	}
	n.Used |= bit
	return true
}

// may says whether there may be one more now, and counts it.
func (n *introductions) may(now time.Time) bool {
	const each = time.Minute / introductionsPerMinute
	if over := int(max(0, now.Sub(n.since)) / each); over >= n.spent {
		n.spent, n.since = 0, now
	} else {
		n.spent -= over
		n.since = n.since.Add(time.Duration(over) * each)
	}
	if n.spent == introductionsAtOnce {
		return false
	}
	n.spent++
	return true
}

// mayIntroduce says whether a session may have its server connect to another one now, and counts it.
func (s *sessions) mayIntroduce(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return x.introduced.may(time.Now())
}
