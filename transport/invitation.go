package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Introduction is what a client tells one of its servers about another one, to which that is to connect.
type Introduction struct {
	Server      uint32 // the other server's number among the client's
	Epoch       uint32 // how many times the client had the two connect before
	Count       int    // connections, 1 to [MaxBulkConns]
	Address     string // IP:PORT
	Fingerprint string `json:",omitempty"` // of the other server's key; "": it has no TLS
	RDMA        bool   `json:",omitempty"` // the client would have the two use it
	Invitation  Invitation
}

// Invitation is the permission for one server of a program to connect to the session that another one has for it. The
// client makes it of that session's secret, which it keeps to itself. It is good for the connections of one epoch.
type Invitation struct {
	Session string // the inviting server's
	Server  uint32 // the number of the server that is invited
	Epoch   uint32
	Key     string
}

// PeerPath is the number of the control connection of RDMA among those of an invitation.
const PeerPath = MaxBulkConns

// Invite makes an invitation.
func Invite(secret, session string, server, epoch uint32) Invitation {
	v := Invitation{Session: session, Server: server, Epoch: epoch}
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s %q", v.purpose(), session)
	v.Key = hex.EncodeToString(mac.Sum(nil))
	return v
}

// purpose names what its tickets are for.
func (v *Invitation) purpose() string { return fmt.Sprintf("%s %d %d", KindPeer, v.Server, v.Epoch) }

// mostSession is more than the bytes of a session's name.
const mostSession = 64

// Token is what the number-th connection presents in the place of a client's token. The session's name is a client's
// word, and who listens need not be a server: nothing but letters and digits is said.
func (v *Invitation) Token(number int, c net.Conn) ([]byte, error) {
	other := func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }
	if v.Session == "" || len(v.Session) > mostSession || strings.ContainsFunc(v.Session, other) {
		return nil, errors.New("what is named is no session")
	}
	ticket, err := Ticket(v.Key, v.Session, v.purpose(), number, c)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s %s %s", v.purpose(), v.Session, ticket), nil
}

// ParseInvited reads such a token, which is good if [Invitation.Admits] says so: the invitation lacks its key.
func ParseInvited(token []byte) (v Invitation, ticket string, ok bool) {
	words := strings.Split(string(token), " ")
	if len(words) != 5 || words[0] != KindPeer {
		return v, "", false
	}
	server, err1 := strconv.ParseUint(words[1], 10, 32)
	epoch, err2 := strconv.ParseUint(words[2], 10, 32)
	v.Server, v.Epoch, v.Session = uint32(server), uint32(epoch), words[3]
	return v, words[4], err1 == nil && err2 == nil
}

// Admits says whether a ticket is one of the invitation's, and which.
func (v *Invitation) Admits(ticket string, c net.Conn) (number int, ok bool) {
	number, ok = TicketNumber(ticket)
	if !ok || number > PeerPath {
		return 0, false
	}
	want, err := Ticket(v.Key, v.Session, v.purpose(), number, c)
	return number, err == nil && SameTicket(want, ticket)
}
