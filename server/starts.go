package server

import (
	"fmt"
	"sync"
	"time"
)

// starts says of the workers of a pool how it stands with those that are being started, for whoever has waited for one
// in vain.
type starts struct {
	mu      sync.Mutex
	last    int
	began   map[int]time.Time // of those that are being started
	longest time.Duration     // that one took which got ready
	failure error             // the latest
	failed  time.Time
}

func (s *starts) begin() (id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began == nil {
		s.began = make(map[int]time.Time)
	}
	s.last++
	s.began[s.last] = time.Now()
	return s.last
}

func (s *starts) end(id int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failure, s.failed = err, time.Now()
	} else {
		s.longest = max(s.longest, time.Since(s.began[id]))
	}
	delete(s.began, id)
}

// String says what bounds those who wait: the starts that do not end, or those that fail.
func (s *starts) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest time.Duration
	for _, t := range s.began {
		oldest = max(oldest, time.Since(t))
	}
	text := fmt.Sprintf("%d workers are being started", len(s.began))
	if len(s.began) > 0 {
		text += fmt.Sprintf(", one for %v already", oldest.Round(100*time.Millisecond))
	}
	if s.longest > 0 {
		text += fmt.Sprintf(" (of those that got ready, none took longer than %v)", s.longest.Round(100*time.Millisecond))
	}
	if s.failure != nil && time.Since(s.failed) <= takeTimeout {
		text += fmt.Sprintf("; one failed %v ago: %v", time.Since(s.failed).Round(100*time.Millisecond), s.failure)
	}
	return text
}
