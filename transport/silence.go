package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

// The rule by which a session's two ends find out that the other one is gone, while a program that is stopped by a
// debugger, and a kernel that runs for hours, are not taken for gone:
//   - Where nothing is under way the kernel's keep-alive asks the other machine's.
//   - Where bytes are under way, somebody looks at the socket each Beat: if nothing of it was acknowledged for so many
//     beats the other machine is gone. TCP_USER_TIMEOUT would not do: it also ends connections whose other end lives
//     and has no room, as that of a stopped program has.
//   - A client that waits for something asks the server for a sign of life (package session).
const (
	Beat        = 2500 * time.Millisecond
	SilentBeats = 5
)

// Unhurried lets a socket's peer take nothing for as long as it likes. Sockets of another kind are as they are.
func Unhurried(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0) }

// Traffic is what the kernel says of a socket.
type Traffic struct {
	Received, Acknowledged uint64 // bytes of the peer, and bytes that it acknowledged
	// Owed says that the peer has owed the acknowledgement of something for a beat.
	Owed bool
}

// TrafficOf gives what is known of a TCP socket; of others nothing.
func TrafficOf(fd int) (t Traffic) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return t
	}
	silent := time.Duration(info.Last_ack_recv) * time.Millisecond
	return Traffic{
		Received: info.Bytes_received, Acknowledged: info.Bytes_acked,
		Owed: (info.Unacked > 0 || info.Probes > 0) && silent >= Beat,
	}
}

// Unread is how many bytes of a socket wait to be read.
func Unread(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// Unsent is how many bytes of a socket have not been acknowledged by the peer.
func Unsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// Debtors counts for how many beats in a row each of some sockets has owed an acknowledgement.
type Debtors map[int]int

// Look looks at the sockets, and says which of them have been silent for too long. It forgets those.
func (d Debtors) Look(fds []int, traffic func(fd int) Traffic) (gone []int) {
	for _, fd := range fds {
		if !traffic(fd).Owed {
			delete(d, fd)
			continue
		}
		if d[fd]++; d[fd] >= SilentBeats {
			delete(d, fd)
			gone = append(gone, fd)
		}
	}
	return gone
}
