// Package trait says what the server has to know of an operation before it carries it out: whether it needs a context,
// launches kernels, may bring data along. The traits are flags of api/cuda.semantics and api/wire.spec; the tables are
// generated from them.
package trait

// Set is what is true of an operation.
type Set uint8

// The traits.
const (
	AsyncErrors Set = 1 << iota // may report the failure of an earlier unanswered call
	ByHand                      // a function of the driver that hand-written code of the server carries out
	Launches                    // starts kernels
	Pools                       // takes memory from a pool
	Contextless                 // goes without a context: the client may name one that does not exist yet
	Bulk                        // may bring bulk data along
	Transfer                    // ... which may come over the bulk connections
)

// Has says whether all of the traits are in the set.
func (s Set) Has(traits Set) bool { return s&traits == traits }

// Of gives the traits of an operation of the protocol; there are none of an unknown one.
func Of(op uint16) Set {
	if op >= firstWire {
		if i := int(op - firstWire); i < len(ofWire) {
			return ofWire[i]
		}
	} else if int(op) < len(ofFunction) {
		return ofFunction[op]
	}
	return 0
}
