package rdma

import "sync/atomic"

// Stats count what links do. They may be read at any time; several links can share one.
type Stats struct {
	Paths            atomic.Int64  // paths that are up now
	Established      atomic.Uint64 // paths that came up
	Lost             atomic.Uint64 // paths that were lost while in use: changes from RDMA to TCP
	Refused          atomic.Uint64 // attempts at a path that failed
	SentChunks       atomic.Uint64
	SentBytes        atomic.Uint64
	ReceivedChunks   atomic.Uint64
	ReceivedBytes    atomic.Uint64
	ReturnedChunks   atomic.Uint64 // given back to be sent over TCP, because the path was lost or no window was granted
	Registrations    atomic.Uint64 // of program memory
	RegistrationHits atomic.Uint64 // uses of a registration that there was
	RegistrationFail atomic.Uint64 // memory that could not be registered; its copies go over TCP
	Windows          atomic.Uint64
}
