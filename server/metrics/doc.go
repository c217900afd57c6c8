// Package metrics counts what a server does and offers it to Prometheus.
//
// What happens in worker processes is counted in a [Page] of memory that a worker shares with the supervisor: an array
// of numbers, to which the worker adds by atomic instructions, without a lock, an allocation or a message. The
// supervisor adds the pages up when it is asked ([Server]), and keeps the sums of workers that have ended.
//
//	worker ── Add, Observe ──▶ Page (memfd) ◀── read when scraped ── supervisor ── /metrics ──▶ Prometheus
//
// A new number needs a constant and a line in the table of series.go, nothing else. Names follow Prometheus's
// conventions: base units, counters end in _total, and no label has more values than a person can look at (never a
// session, a process or an address).
package metrics
