package isolation

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16 // of 64 bits each, little-endian
)

var errThread = errors.New("a thread of the process cannot be filtered")

// program makes the kernel's filter of a table. One that only logs lets everything through.
func program(rules []Rule, pid int, logOnly bool) []unix.SockFilter {
	verdict := func(a Action) uint32 {
		switch {
		case logOnly:
			return unix.SECCOMP_RET_LOG
		case a == Refuse:
			return unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		case a == Absent:
			return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		}
		return unix.SECCOMP_RET_KILL_PROCESS
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(test uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: k, Jt: yes, Jf: no}
	}
	end := func(with uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with}
	}
	const allow = unix.SECCOMP_RET_ALLOW
	f := []unix.SockFilter{
		load(offArch), jump(unix.BPF_JEQ, architecture, 1, 0), end(verdict(Kill)),
		load(offNumber), jump(unix.BPF_JGE, otherCalls, 0, 1), end(verdict(Kill)),
	}
	for _, r := range rules {
		if r.When == Always {
			f = append(f, jump(unix.BPF_JEQ, r.Call, 0, 1), end(verdict(r.Action)))
			continue
		}
		value, test, ifTrue, ifFalse := r.Value, uint16(unix.BPF_JEQ), uint32(allow), verdict(r.Action)
		if value == OwnPID {
			value = uint32(pid)
		}
		switch r.When {
		case UnlessHas: // values are single bits
			test = unix.BPF_JSET
		case If:
			ifTrue, ifFalse = ifFalse, ifTrue
		}
		f = append(f, jump(unix.BPF_JEQ, r.Call, 0, 4), load(offArgs+8*uint32(r.Arg)),
			jump(test, value, 0, 1), end(ifTrue), end(ifFalse))
	}
	return append(f, end(allow))
}

// install gives all threads of the process the filter, and no_new_privs with it.
func install(f []unix.SockFilter) error {
	p := unix.SockFprog{Len: uint16(len(f)), Filter: unsafe.SliceData(f)}
	thread, _, err := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&p)))
	switch {
	case err != 0:
		return err
	case thread != 0:
		return fmt.Errorf("%w: %d", errThread, thread)
	}
	return nil
}
