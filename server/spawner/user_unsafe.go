package spawner

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ids that stay as they are.
const same = ^uintptr(0)

// actAs has the calling thread, and it alone, reach files as a user with the group of the same number, and with root's
// group beside it. actAsRoot takes that back.
func actAs(uid uint32) error {
	if err := setGroups([]int{0}); err != nil {
		return err
	}
	id := uintptr(uid)
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); err != 0 {
		return err
	}
	return setUsers(same, id, same)
}

func actAsRoot() error { return setUsers(same, 0, same) }

// becomeUser gives the calling thread, and it alone, a user with the group of the same number. What the thread was
// allowed as root it is not any more, and cannot be again.
func becomeUser(uid uint32, groups []int) error {
	if err := setGroups(groups); err != nil {
		return err
	}
	id := uintptr(uid)
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); err != 0 {
		return err
	}
	return setUsers(id, id, id)
}

func setGroups(groups []int) error {
	list := make([]uint32, len(groups)+1) // never empty, so that there is an address
	for i, g := range groups {
		list[i] = uint32(g)
	}
	_, _, err := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if err != 0 {
		return err
	}
	return nil
}

func setUsers(real, effective, saved uintptr) error {
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, real, effective, saved); err != 0 {
		return err
	}
	return nil
}
