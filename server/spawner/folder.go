package spawner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The folder of workers holds a folder for each tenant. Its names can be foretold, so nobody but the spawner makes
// names there: it is root's, and writable for root and root's group. The spawner has no right over other users' files.
// It makes a tenant's folder on a thread that is that user already, and still of root's group; the worker is not.

// openFolder prepares the folder of workers. One that leads elsewhere, or that somebody else could exchange, is an
// operator's slip.
func (l *Local) openFolder() error {
	path, bits := l.cfg.Folder, uint32(0o700)
	if !l.cfg.UIDs.Empty() {
		bits = 0o1731
	}
	fail := func(err error) error {
		return fmt.Errorf("the folder of workers: %w; name another with --worker-folder, or none", err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fail(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) { // a folder is there: MkdirAll has seen one
		return fail(fmt.Errorf("%s is a symbolic link", path))
	}
	if err != nil {
		return fail(fmt.Errorf("%s: %w", path, err))
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fail(fmt.Errorf("%s belongs to user %d, not to %d", path, st.Uid, os.Geteuid()))
	}
	if !l.cfg.UIDs.Empty() && st.Gid != 0 {
		if err := unix.Fchown(fd, -1, 0); err != nil {
			return fail(fmt.Errorf("%s is of group %d, not of root's: %w", path, st.Gid, err))
		}
	}
	if st.Mode&0o7777 != bits {
		if err := unix.Fchmod(fd, bits); err != nil {
			return fail(fmt.Errorf("%s: %w", path, err))
		}
	}
	l.warnOfParents(path)
	return nil
}

// warnOfParents says which folder above would let others put another in the place of the folder of workers.
func (l *Local) warnOfParents(path string) {
	path, err := filepath.EvalSymlinks(path)
	for err == nil && path != "/" {
		path = filepath.Dir(path)
		var st unix.Stat_t
		if err = unix.Stat(path, &st); err != nil {
			break
		}
		const others, sticky = 0o022, 0o1000
		if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&others != 0 && st.Mode&sticky == 0 {
			l.log.Warn("others may exchange the folder of workers: a folder above it is theirs to write", "folder", path,
				"user", st.Uid, "mode", fmt.Sprintf("%04o", st.Mode&0o7777), "remedy", "another --worker-folder")
		}
	}
}

// folderFor gives a tenant's folder, of which the calling thread may be the owner. No folder is better than no worker:
// it only costs time to compile again.
func (l *Local) folderFor(o Order) string {
	l.making.Lock()
	defer l.making.Unlock()
	path := filepath.Join(l.cfg.Folder, o.folder())
	err := asOwner(o, func() error { return ownFolder(path) })
	if errors.Is(err, errForeign) { // from a time when others could make names there
		aside := path + ".foreign-" + rand.Text()[:8]
		l.log.Warn("there is something else in the place of a tenant's folder; it is set aside", "error", err,
			"now", aside)
		if err = os.Rename(path, aside); err == nil {
			err = asOwner(o, func() error { return ownFolder(path) })
		}
	}
	if err != nil {
		l.log.Warn("a worker has no folder; what its driver compiles is not kept", "folder", path, "error", err)
		return ""
	}
	return path
}

// asOwner does something as the user of a worker.
func asOwner(o Order, f func() error) error {
	if o.UID == 0 {
		return f()
	}
	if err := actAs(o.UID); err != nil {
		return fmt.Errorf("act as user %d: %w", o.UID, err)
	}
	err := f()
	return errors.Join(err, actAsRoot())
}

// errForeign is something in the place of a tenant's folder that is not the tenant's folder.
var errForeign = errors.New("not the tenant's folder")

// ownFolder makes a tenant's folder, as its user.
func ownFolder(path string) error {
	if err := makeFolder(path); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("the tenant's folder: %w", err)
	}
	// the thread's user: Geteuid would tell the same, but says it is the process's
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != unix.Geteuid() {
		return fmt.Errorf("%w: %s is of user %d, mode %o", errForeign, path, st.Uid, st.Mode)
	}
	if st.Mode&0o7777 != 0o700 { // a worker opened it to others
		if err := os.Chmod(path, 0o700); err != nil {
			return fmt.Errorf("the tenant's folder: %w", err)
		}
	}
	return makeFolder(filepath.Join(path, "cuda"))
}

func makeFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("the tenant's folder: %w", err)
	}
	return nil
}
