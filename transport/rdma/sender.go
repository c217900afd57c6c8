package rdma

import (
	"scuda.dev/scuda/transport/bulk"
)

// Slots and Windows are a link as senders of package bulk. Both tell the [bulk.Outbound] that they belong to what
// became of a piece, by the link's handler.

// Slots sends pieces of registered memory into slots of the peer, and waits for the peer's credit. It is for the side
// whose transfers are uploads.
type Slots struct{ *Link[bulk.Piece] }

var _ bulk.Sender = Slots{}

// Register registers memory from which pieces are sent.
func (s Slots) Register(data []byte) (bulk.Region, error) {
	r, err := s.Link.Register(data)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Send sends a piece of memory that [Slots.Register] registered. Where the piece says that more follow, they must be
// sent, as long as there is this path.
func (s Slots) Send(p bulk.Piece, from bulk.Region) error {
	r, ok := from.(Region)
	if !ok || !s.Link.Send(p.Chunk(), p.Data(), r, p) {
		return bulk.ErrDown
	}
	return nil
}

// Windows sends pieces that lie in the link's Source to the windows of their transfers, for which the link was asked
// with [Link.Want]. It does not wait. It is for the side whose transfers are downloads.
type Windows struct{ *Link[bulk.Piece] }

var _ bulk.Sender = Windows{}

// Register is not needed.
func (w Windows) Register([]byte) (bulk.Region, error) { return nil, nil }

// Send sends a piece.
func (w Windows) Send(p bulk.Piece, _ bulk.Region) error {
	addr := p.Addr()
	if data := p.Data(); data != nil {
		addr = address(data)
	}
	if !w.Place(p.Chunk(), addr, p) {
		return bulk.ErrDown
	}
	return nil
}
