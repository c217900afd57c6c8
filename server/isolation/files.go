package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Access is what may be done with files.
type Access int

// Accesses.
const (
	Read  Access = iota // files and folders are read
	Run                 // read, and mapped or started as programs
	Use                 // devices: read, written and controlled; nothing is made
	Write               // everything that ordinary files need, in a folder
)

// FileRule is one row of the table of files: a path, which may be a pattern (filepath.Glob).
type FileRule struct {
	Path   string
	Access Access
	For    Profile // [Base]: everybody
}

// Files is the table of what sessions of a profile may do with files. What it does not name is denied. What is not
// there when the worker starts is left out.
func Files(p Profile) []FileRule {
	var rules []FileRule
	for _, r := range files {
		if r.For == Base || r.For&p != 0 {
			rules = append(rules, r)
		}
	}
	return rules
}

var files = []FileRule{
	// programs and libraries: the driver's, the toolkit's, the C library
	{Path: "/usr", Access: Run}, {Path: "/lib*", Access: Run}, {Path: "/opt", Access: Run},
	{Path: "/nix/store", Access: Run}, {Path: "/run/opengl-driver", Access: Run},
	// their settings
	{Path: "/etc/ld.so.*"}, {Path: "/etc/nvidia*"}, {Path: "/etc/cuda*"}, {Path: "/etc/localtime"},
	{Path: "/etc/nsswitch.conf"}, {Path: "/etc/passwd"}, {Path: "/etc/group"}, {Path: "/etc/machine-id"},
	// the GPUs
	{Path: "/dev/nvidia*", Access: Use}, {Path: "/sys/devices"}, {Path: "/sys/bus"},
	{Path: "/dev/dxg", Access: Use},                                                                           // of WSL
	{Path: "/dev/nvmap", Access: Use}, {Path: "/dev/nvhost*", Access: Use}, {Path: "/dev/nvgpu", Access: Use}, // of Tegra
	{Path: "/sys/class"}, {Path: "/sys/module"}, {Path: "/sys/kernel/mm"}, {Path: "/sys/fs/cgroup"},
	{Path: "/run/nvidia-persistenced", Access: Use}, {Path: "/var/run/nvidia-persistenced", Access: Use},
	// The driver names its threads by files there, and cuInit fails where it cannot. Nothing can be made in it, other
	// processes' memory is behind the rules of ptrace, and the system's settings are root's.
	{Path: "/proc", Access: Write},
	// NVIDIA's MPS, where the operator runs it; package spawner adds the folder of another place
	{Path: "/tmp/nvidia-mps", Access: Write},
	// what every program uses
	{Path: "/dev/null", Access: Use}, {Path: "/dev/zero", Access: Use}, {Path: "/dev/full", Access: Use},
	{Path: "/dev/random"}, {Path: "/dev/urandom"},
	// memory that the driver shares between processes of one user
	{Path: "/dev/shm", Access: Write},
	{Path: "/dev/infiniband", Access: Use, For: RDMA | NCCL}, {Path: "/etc/libibverbs.d", For: RDMA | NCCL},
	{Path: "/etc/nccl.conf", For: NCCL}, {Path: "/etc/hosts", For: NCCL}, {Path: "/etc/resolv.conf", For: NCCL},
}

const (
	toRead = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	toUse  = toRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// a device may be truncated when it is opened, to no effect
	toTruncate = unix.LANDLOCK_ACCESS_FS_TRUNCATE
	toWrite    = toRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | toTruncate | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_REFER
	// what a rule about a file, in place of a folder, may name
	ofFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | toTruncate
)

func (a Access) rights() uint64 {
	switch a {
	case Run:
		return toRead | unix.LANDLOCK_ACCESS_FS_EXECUTE
	case Use:
		return toUse | toTruncate
	case Write:
		return toWrite
	default:
		return toRead
	}
}

// handled are the rights that a kernel of an ABI knows; where it knows a right, what no rule allows is denied.
func handled(abi int) unix.LandlockRulesetAttr {
	a := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_EXECUTE<<13 - 1} // up to MAKE_SYM
	more := []struct {
		from int
		add  func()
	}{
		{2, func() { a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER }},
		{3, func() { a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE }},
		{4, func() {
			a.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		}},
		{5, func() { a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV }},
		{6, func() { a.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL }},
	}
	for _, m := range more {
		if abi >= m.from {
			m.add()
		}
	}
	return a
}

// restricted is what a session of a profile is kept from. NCCL connects to other machines. Workers of one machine, of
// one server or of two, hand each other their GPU memory through abstract sockets.
func restricted(abi int, p Profile) unix.LandlockRulesetAttr {
	a := handled(abi)
	if p&NCCL != 0 {
		a.Handled_access_net = 0
		a.Scoped &^= unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	return a
}

// leastABI is the first whose files can be renamed between folders, as caches do. It came with Linux 5.19.
const leastABI = 2

// logABI is the first that logs what it denies.
const logABI = 7

// ErrNoLandlock says that the kernel has no Landlock, or one that is too old.
var ErrNoLandlock = errors.New("the kernel has no Landlock, or it is switched off")

// Landlock says whether the kernel can restrict what a process does with files.
func Landlock() error {
	abi, err := landlockABI()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoLandlock, err)
	case abi < leastABI:
		return fmt.Errorf("%w: its version is %d, %d is needed", ErrNoLandlock, abi, leastABI)
	}
	return nil
}

// Enclose restricts the calling thread, and what is started from it, to the files of its profile and to more. It cannot
// be taken back: the caller has bound itself to the thread and lets it end with itself. Programs that the thread starts
// gain no rights (no_new_privs).
func Enclose(p Profile, more []FileRule) error {
	abi, err := landlockABI()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoLandlock, err)
	}
	what := restricted(abi, p)
	set, err := newRuleset(&what)
	if err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	defer unix.Close(set)
	for _, r := range append(Files(p), more...) {
		if err := allow(set, r, what.Handled_access_fs); err != nil {
			return fmt.Errorf("landlock: %s: %w", r.Path, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	var flags uintptr
	if abi >= logABI {
		flags = unix.LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON // what a worker is denied stands in the kernel's log (audit)
	}
	if err := restrictThread(set, flags); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return nil
}

// allow adds the files of a row that are there.
func allow(set int, r FileRule, known uint64) error {
	paths, err := filepath.Glob(r.Path)
	if err != nil {
		return err
	}
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			continue // what the caller cannot reach, the worker need not
		}
		if err != nil {
			return err
		}
		err = addRule(set, fd, r.Access.rights()&known)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}
