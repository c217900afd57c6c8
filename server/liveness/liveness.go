// Package liveness has the ranks of a communicator learn when one of them is lost. NCCL itself does not always notice:
// a call whose connections are not made yet waits, and so may kernels that share memory.
//
// The executor calls it, in the workers. The worker that makes a communicator's id listens beside NCCL's own socket
// (Listen), and says in the id's last bytes, which NCCL leaves at zero, by which port and secret. Every rank's worker
// takes that out again (Open), connects there (Join), and says when its communicator ends as it should. A connection
// that ends without that is a lost rank, which the Hub tells to all others. A part of a communicator is a group of its
// own at the same hub, with a connection for each rank. The network is one that NCCL's own traffic is trusted to.
//
// Hub.mu guards the hub's connections and lost ranks, Member.mu what a member has said. No other lock is taken while
// one is held.
package liveness

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"scuda.dev/scuda/api/nccl"
)

// What stands in an id: NCCL's own part is 36 to 40 bytes, a number and a socket's address.
const (
	familyAt   = 8  // of the address, as in C
	sealAt     = 80 // where our part begins
	portAt     = sealAt + 8
	secretAt   = portAt + 8
	secretSize = 32
	inet       = 2  // AF_INET
	inet6      = 10 // AF_INET6
)

var sealMagic = [8]byte{'s', 'c', 'u', 'd', 'a', 'w', 0, 2}

// The silence after which a peer is asked whether it is there, and how often: a machine that is gone is noticed in
// 10 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}

const (
	joinTime = 5 * time.Second // for a connection to be made, and to say who it is
	joinSize = secretSize + 12 // a proof, a group and a rank
	mostJoin = 1 << 16         // ranks of a hub, of all groups
)

// What a hub and its members say: a letter and a rank.
const (
	saysLost = 'L' // to members: this rank is lost
	saysEnd  = 'E' // to members: the hub ends as it should, and so the watch
	saysDone = 'D' // to the hub: this rank's communicator has ended as it should
	saidSize = 5
)

// ErrSeal says that an id has no room for us.
var ErrSeal = errors.New("an NCCL id without an address, or of another form")

// address is where NCCL's own socket listens, of which the port is its own.
func address(id *nccl.ID) (netip.Addr, error) {
	switch binary.LittleEndian.Uint16(id[familyAt:]) {
	case inet:
		return netip.AddrFrom4([4]byte(id[familyAt+4:])), nil
	case inet6:
		a := netip.AddrFrom16([16]byte(id[familyAt+8:]))
		if scope := binary.LittleEndian.Uint32(id[familyAt+24:]); scope != 0 {
			a = a.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return a, nil
	}
	return netip.Addr{}, ErrSeal
}

// seal writes into an id where a hub listens.
func seal(id *nccl.ID, port uint16, secret []byte) error {
	for _, b := range id[sealAt:] {
		if b != 0 {
			return ErrSeal
		}
	}
	copy(id[sealAt:], sealMagic[:])
	binary.LittleEndian.PutUint16(id[portAt:], port)
	copy(id[secretAt:], secret)
	return nil
}

// Place is where the ranks of a communicator, or of a part of one, are watched: a hub, and a group there. The zero one
// is nowhere.
type Place struct {
	at     netip.AddrPort
	secret [secretSize]byte
	group  uint64 // 0: the communicator that was made of an id
}

// Open takes our part out of an id, so that NCCL gets what it made. It says whether there was one.
func Open(id *nccl.ID) (p Place, ok bool) {
	if [8]byte(id[sealAt:]) != sealMagic {
		return Place{}, false
	}
	a, err := address(id)
	p.at = netip.AddrPortFrom(a, binary.LittleEndian.Uint16(id[portAt:]))
	p.secret = [secretSize]byte(id[secretAt:])
	clear(id[sealAt:])
	return p, err == nil
}

// Known says whether there is such a place.
func (p Place) Known() bool { return p.at.IsValid() }

// Split is the place of a part that ncclCommSplit makes: the count-th of the communicator, from 0, and a colour. All
// ranks of a communicator split it in the same order.
func (p Place) Split(count uint64, color int32) Place {
	return p.part("split", binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, count), uint32(color)))
}

// Shrink is the place of what ncclCommShrink leaves. That several by the same ranks have one does no harm: their ranks
// are the same.
func (p Place) Shrink(excluded []int32) Place {
	var b []byte
	for _, rank := range slices.Sorted(slices.Values(excluded)) {
		b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	}
	return p.part("shrink", b)
}

func (p Place) part(how string, of []byte) Place {
	sum := sha256.Sum256(append(binary.LittleEndian.AppendUint64([]byte(how), p.group), of...))
	p.group = binary.LittleEndian.Uint64(sum[:])
	return p
}

func said(letter byte, rank int32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{letter}, uint32(rank))
}

func read(c net.Conn) (letter byte, rank int32, err error) {
	var b [saidSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, 0, err
	}
	return b[0], int32(binary.LittleEndian.Uint32(b[1:])), nil
}

// proof is what a rank sends that knows the secret. An id comes from a client, who could choose what a worker sends to
// some port otherwise.
func proof(secret [secretSize]byte) [secretSize]byte { return sha256.Sum256(secret[:]) }

func newSecret() (s [secretSize]byte) {
	_, _ = rand.Read(s[:]) // it does not fail
	return s
}
