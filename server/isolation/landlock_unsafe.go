package isolation

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// landlockABI asks the kernel which version of Landlock it has.
func landlockABI() (int, error) {
	n, _, err := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}

// newRuleset gives the descriptor of an empty set. A kernel refuses a structure that is longer than the one
// it knows, so it gets no more than what is set.
func newRuleset(a *unix.LandlockRulesetAttr) (int, error) {
	size := unsafe.Offsetof(a.Quiet_access_fs)
	switch {
	case a.Scoped != 0:
	case a.Handled_access_net != 0:
		size = unsafe.Offsetof(a.Scoped)
	default:
		size = unsafe.Offsetof(a.Handled_access_net)
	}
	fd, _, err := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(a)), size, 0)
	if err != 0 {
		return -1, err
	}
	return int(fd), nil
}

// addRule allows rights below what fd is opened on. Of a file only some rights make sense.
func addRule(set, fd int, rights uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= ofFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, err := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	runtime.KeepAlive(&rule)
	if err != 0 {
		return err
	}
	return nil
}

// restrictThread restricts the calling thread.
func restrictThread(set int, flags uintptr) error {
	_, _, err := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(set), flags, 0)
	if err != 0 {
		return err
	}
	return nil
}
