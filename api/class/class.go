// Package class names the kinds of calls (launch, copy, memory …) by which figures about calls are given. They are the
// groups of api/cuda.semantics.
package class

// Class is a kind of call.
type Class uint8

func (c Class) String() string { return names[c] }

// Of is the class of an operation of the protocol.
func Of(op uint16) Class {
	if op >= firstWire {
		if i := int(op - firstWire); i < len(ofWire) {
			return ofWire[i]
		}
	} else if int(op) < len(ofFunction) {
		return ofFunction[op]
	}
	return Other
}
