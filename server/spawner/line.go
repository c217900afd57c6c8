package spawner

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sendLimit is how long one side waits for room in the socket. Both read all the time.
const sendLimit = 5 * time.Second

// line is one end of the socket between supervisor and spawner. send may be called by several goroutines, receive by
// one.
type line struct{ sock *net.UnixConn }

// pair gives the two ends of a new socket.
func pair() (line, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return line{}, nil, fmt.Errorf("socket to the spawner: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "spawner")
	ours, err := lineOf(os.NewFile(uintptr(fds[0]), "supervisor"))
	if err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// lineOf takes a descriptor over.
func lineOf(f *os.File) (line, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return line{}, fmt.Errorf("socket between supervisor and spawner: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok || sock.LocalAddr().Network() != "unixpacket" {
		c.Close()
		return line{}, fmt.Errorf("%w: a socket of another kind", errPacket)
	}
	return line{sock}, nil
}

func (l line) send(p *packet, files ...*os.File) error {
	var oob []byte
	if len(files) > 0 {
		fds, err := numbers(files)
		if err != nil {
			return err
		}
		oob = unix.UnixRights(fds...)
	}
	if err := l.sock.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	_, _, err := l.sock.WriteMsgUnix(p.append(make([]byte, 0, maxPacket)), oob, nil)
	return err
}

// numbers are those of open files. os.File.Fd would have all who share a file wait in it.
func numbers(files []*os.File) (fds []int, err error) {
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return nil, err
		}
	}
	return fds, nil
}

// receive gives the next packet with its files, which are the caller's. io.EOF says that the peer is gone.
func (l line) receive() (packet, []*os.File, error) {
	b, oob := make([]byte, maxPacket+1), make([]byte, unix.CmsgSpace(4*mostFiles))
	n, oobn, flags, _, err := l.sock.ReadMsgUnix(b, oob)
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer went without reading all that was sent to it. The kernel says so once, before what the peer had sent.
		n, oobn, flags, _, err = l.sock.ReadMsgUnix(b, oob)
	}
	if err != nil || n == 0 {
		if err == nil {
			err = io.EOF
		}
		return packet{}, nil, err
	}
	files, err := filesOf(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: cut short", errPacket)
	}
	var p packet
	if err == nil {
		p, err = parsePacket(b[:n])
	}
	if err == nil && len(files) != filesWith(p.Kind) {
		err = fmt.Errorf("%w: %d descriptors with kind %d", errPacket, len(files), p.Kind)
	}
	if err != nil {
		closeAll(files)
		return packet{}, nil, err
	}
	return p, files, nil
}

func filesOf(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPacket, err)
	}
	for i := range parts {
		fds, err := unix.ParseUnixRights(&parts[i])
		if err != nil {
			continue // something else that the kernel tells
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// peerUID is the user of the process that made the other end.
func (l line) peerUID() (uint32, error) {
	raw, err := l.sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
