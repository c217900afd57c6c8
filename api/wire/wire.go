// Package wire has the payloads of hand-written operations as Go structures, generated from api/wire.spec. They lie on
// the wire exactly as in memory (little endian); View and Bytes convert without copying.
package wire

import "strconv"

// OpName is the name of a hand-written operation.
func OpName(op uint16) string {
	if n, ok := opNames[op]; ok {
		return n
	}
	return "wire operation " + strconv.Itoa(int(op))
}
