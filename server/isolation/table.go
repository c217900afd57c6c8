package isolation

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Action is what becomes of a forbidden system call.
type Action int

// Actions.
const (
	// Kill ends the process: nothing in a worker has a use for the call, so whoever makes it has taken the worker over.
	Kill   Action = iota
	Refuse        // EPERM: libraries make the call and do without
	Absent        // ENOSYS: libraries use an older call instead, which is judged by its arguments
)

// Condition says for which arguments a call is forbidden.
type Condition int

// Conditions.
const (
	Always    Condition = iota
	Unless              // the argument has the value
	UnlessHas           // the argument has all bits of the value
	If                  // the argument has the value
)

// Rule is one row of the table.
type Rule struct {
	Name   string
	Call   uint32
	Action Action
	When   Condition
	Arg    int     // which argument; its lower 32 bits are looked at
	Value  uint32  // OwnPID: the process's own number
	But    Profile // who may make the call
}

// OwnPID stands for the number of the process.
const OwnPID = ^uint32(0)

// Forbidden is the table of what sessions of a profile may not do. What it does not name is allowed.
func Forbidden(p Profile) []Rule {
	rules := slices.Concat(calls, ofArchitecture)
	return slices.DeleteFunc(rules, func(r Rule) bool { return r.But&p != 0 })
}

var calls = []Rule{
	// other programs and processes
	{Name: "execve", Call: unix.SYS_EXECVE},
	{Name: "execveat", Call: unix.SYS_EXECVEAT},
	{Name: "clone", Call: unix.SYS_CLONE, Action: Refuse, When: UnlessHas, Value: unix.CLONE_THREAD},
	{Name: "clone3", Call: unix.SYS_CLONE3, Action: Absent},
	{Name: "unshare", Call: unix.SYS_UNSHARE},
	{Name: "setns", Call: unix.SYS_SETNS},
	// the memory and descriptors of others
	{Name: "ptrace", Call: unix.SYS_PTRACE},
	{Name: "process_vm_readv", Call: unix.SYS_PROCESS_VM_READV},
	{Name: "process_vm_writev", Call: unix.SYS_PROCESS_VM_WRITEV},
	{Name: "process_madvise", Call: unix.SYS_PROCESS_MADVISE},
	{Name: "process_mrelease", Call: unix.SYS_PROCESS_MRELEASE},
	{Name: "kcmp", Call: unix.SYS_KCMP},
	{Name: "pidfd_getfd", Call: unix.SYS_PIDFD_GETFD},
	{Name: "perf_event_open", Call: unix.SYS_PERF_EVENT_OPEN, Action: Refuse, But: Profiling},
	{Name: "bpf", Call: unix.SYS_BPF},
	{Name: "prctl(PR_SET_DUMPABLE)", Call: unix.SYS_PRCTL, Action: Refuse, When: If, Value: unix.PR_SET_DUMPABLE},
	{Name: "prlimit64", Call: unix.SYS_PRLIMIT64, Action: Refuse, When: Unless, Value: 0}, // of others
	// signals to others
	{Name: "kill", Call: unix.SYS_KILL, Action: Refuse, When: Unless, Value: OwnPID},
	{Name: "tkill", Call: unix.SYS_TKILL, Action: Refuse},
	{Name: "tgkill", Call: unix.SYS_TGKILL, Action: Refuse, When: Unless, Value: OwnPID},
	{Name: "rt_sigqueueinfo", Call: unix.SYS_RT_SIGQUEUEINFO, Action: Refuse, When: Unless, Value: OwnPID},
	{Name: "rt_tgsigqueueinfo", Call: unix.SYS_RT_TGSIGQUEUEINFO, Action: Refuse, When: Unless, Value: OwnPID},
	{Name: "pidfd_send_signal", Call: unix.SYS_PIDFD_SEND_SIGNAL, Action: Refuse},
	// io_uring makes system calls that no filter sees
	{Name: "io_uring_setup", Call: unix.SYS_IO_URING_SETUP, Action: Refuse},
	// the machine
	{Name: "mount", Call: unix.SYS_MOUNT},
	{Name: "umount2", Call: unix.SYS_UMOUNT2},
	{Name: "move_mount", Call: unix.SYS_MOVE_MOUNT},
	{Name: "open_tree", Call: unix.SYS_OPEN_TREE},
	{Name: "fsopen", Call: unix.SYS_FSOPEN},
	{Name: "pivot_root", Call: unix.SYS_PIVOT_ROOT},
	{Name: "chroot", Call: unix.SYS_CHROOT},
	{Name: "open_by_handle_at", Call: unix.SYS_OPEN_BY_HANDLE_AT},
	{Name: "init_module", Call: unix.SYS_INIT_MODULE},
	{Name: "finit_module", Call: unix.SYS_FINIT_MODULE},
	{Name: "delete_module", Call: unix.SYS_DELETE_MODULE},
	{Name: "kexec_load", Call: unix.SYS_KEXEC_LOAD},
	{Name: "reboot", Call: unix.SYS_REBOOT},
	{Name: "swapon", Call: unix.SYS_SWAPON},
	{Name: "add_key", Call: unix.SYS_ADD_KEY},
	{Name: "request_key", Call: unix.SYS_REQUEST_KEY},
	{Name: "keyctl", Call: unix.SYS_KEYCTL},
	// connections come from the supervisor
	{Name: "socket", Call: unix.SYS_SOCKET, Action: Refuse, But: RDMA | NCCL},
	{Name: "listen", Call: unix.SYS_LISTEN, Action: Refuse, But: NCCL},
	{Name: "connect", Call: unix.SYS_CONNECT, Action: Refuse, But: NCCL},
}
