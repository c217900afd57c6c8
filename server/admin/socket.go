package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Words in the place of a socket's path.
const (
	Auto = "auto" // a name in [Folder] that has the server's port
	None = "none" // no admin interface
)

const (
	prefix, suffix = "admin-", ".sock"
	maxPath        = 107 // bytes of a Unix socket's path
	knock          = time.Second
	lockTime       = 2 * knock             // who has the lock may knock at a socket
	lockLook       = 10 * time.Millisecond // there is no wait for a lock that can be given up
)

// Folder is where a server of this user has its socket, by Auto: the one that systemd made for it, root's, or the
// user's own; "" where there is none.
func Folder() string {
	if f := os.Getenv("RUNTIME_DIRECTORY"); filepath.IsAbs(f) && !strings.Contains(f, ":") {
		return f
	}
	return folderOf(os.Geteuid())
}

const rootFolder = "/run/scuda"

func folderOf(uid int) string {
	if uid == 0 {
		return rootFolder
	}
	if f := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(f) {
		return filepath.Join(f, "scuda")
	}
	return ""
}

// PathOf is the socket of a server that listens on a port; "" where this user has no folder for it.
func PathOf(port int) string {
	folder := Folder()
	if folder == "" {
		return ""
	}
	return filepath.Join(folder, fmt.Sprintf("%s%d%s", prefix, port, suffix))
}

// Listen makes a socket that only this user and root reach. What a server left there that is gone is taken away;
// what anybody else has there is not.
func Listen(ctx context.Context, path string) (*net.UnixListener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("admin socket %s: the path is longer than %d bytes; choose a shorter one with --admin SOCKET",
			path, maxPath)
	}
	folder, err := openFolder(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	defer folder.Close() // and with it goes the lock, by which no two servers clear the place at a time
	if err := lock(ctx, folder); err != nil {
		return nil, fmt.Errorf("%w: another program has locked the folder of %s for %v; try again", ErrTaken, path, lockTime)
	}
	if err := clearPlace(ctx, path); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), l.Close())
	}
	return l.(*net.UnixListener), nil
}

// lock takes a folder's lock. Servers that start at the same time wait for each other. As whoever may read the folder
// can hold the lock for ever, the wait has an end.
func lock(ctx context.Context, folder *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	for {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockLook):
		}
	}
}

// openFolder makes the socket's folder where there is none, and refuses one in which everybody can exchange files.
func openFolder(path string) (*os.File, error) {
	err := os.Mkdir(path, 0o700)
	if path == rootFolder && err == nil { // who is not root may look which servers there are
		err = os.Chmod(path, 0o755)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w; make the folder, or choose another place with --admin SOCKET", err)
	}
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := folder.Stat()
	switch {
	case err != nil:
	case !info.IsDir():
		err = fmt.Errorf("%s is no folder", path)
	case info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0:
		err = fmt.Errorf("every user can exchange files in %s; chmod o-w %[1]s, or choose another place with "+
			"--admin SOCKET", path)
	}
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}

// clearPlace takes away a socket of this user's at which nobody listens any more.
func clearPlace(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("admin socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w: %s is no socket; remove it, or choose another place with --admin SOCKET", ErrTaken, path)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s is of user %d; choose another place with --admin SOCKET", ErrTaken, path, st.Uid)
	}
	ctx, cancel := context.WithTimeout(ctx, knock)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("%w: a server listens at %s; stop it, or choose another place with --admin SOCKET", ErrTaken, path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: it is not known whether a server listens at %s (%w); remove it if there is none", ErrTaken,
			path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("admin socket of a server that is gone: %w", err)
	}
	return nil
}

// peer is who is at a connection's other end, as its address.
type peer struct{ uid, pid int }

func (peer) Network() string  { return "unix" }
func (p peer) String() string { return fmt.Sprintf("pid %d of user %d", p.pid, p.uid) }

// nobody stands for a peer of which the kernel does not say who it is.
var nobody = peer{-1, -1}

// known is a connection that knows its peer.
type known struct {
	*net.UnixConn
	peer peer
}

func (c known) RemoteAddr() net.Addr { return c.peer }

// knowing is a listener for such connections.
type knowing struct{ *net.UnixListener }

func (l knowing) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return known{c, peerOf(c)}, nil
}

func peerOf(c *net.UnixConn) peer {
	raw, err := c.SyscallConn()
	if err != nil {
		return nobody
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || failed != nil {
		return nobody
	}
	return peer{int(cred.Uid), int(cred.Pid)}
}
