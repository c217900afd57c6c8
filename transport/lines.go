package transport

import "math"

// The connections of a session by number, for a client that comes back to one ([CapResume]).
const (
	LineMain     uint32 = 1
	LineCallback uint32 = 2
	LineRDMA     uint32 = 3  // the control connection of RDMA ([CapResumeRDMA])
	LineBulk     uint32 = 16 // the first of the bulk connections
	LineEnd      uint32 = LineBulk + MaxBulkConns
)

// IsLine says whether a session may have a connection of that number.
func IsLine(line uint32) bool {
	return line == LineMain || line == LineCallback || line == LineRDMA || line >= LineBulk && line < LineEnd
}

// ResumeNumber is the number of the ticket for a connection's socket of an epoch.
func ResumeNumber(line uint32, epoch uint64) int {
	if epoch > math.MaxInt/uint64(LineEnd)-1 {
		return -1
	}
	return int(epoch)*int(LineEnd) + int(line)
}
