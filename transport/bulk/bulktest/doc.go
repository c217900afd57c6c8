// Package bulktest has senders of package bulk in memory, for tests: a [Stream] in the place of a TCP connection, and
// a [Path] in the place of one by RDMA, whose loss tests bring about. They keep the same account of credits and
// arrivals (package ring) and show the same order of events.
package bulktest
