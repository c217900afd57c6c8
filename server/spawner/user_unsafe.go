package spawner

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// becomeUser gives the calling thread, and it alone, a user with the group of the same number. What the thread was
// allowed as root it is not any more, and cannot be again.
func becomeUser(uid uint32, groups []int) error {
	list := make([]uint32, len(groups)+1) // never empty, so that there is an address
	for i, g := range groups {
		list[i] = uint32(g)
	}
	id := uintptr(uid)
	_, _, err := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if err != 0 {
		return err
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); err != 0 {
		return err
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); err != 0 {
		return err
	}
	return nil
}
