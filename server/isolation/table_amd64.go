package isolation

import "golang.org/x/sys/unix"

const (
	architecture = unix.AUDIT_ARCH_X86_64
	// otherCalls is where the numbers of another way to make system calls begin (x32).
	otherCalls = 0x40000000
)

// ofArchitecture are calls that other processors' kernels do not have.
var ofArchitecture = []Rule{
	{Name: "fork", Call: unix.SYS_FORK, Action: Refuse},
	{Name: "vfork", Call: unix.SYS_VFORK, Action: Refuse},
	{Name: "iopl", Call: unix.SYS_IOPL},
	{Name: "ioperm", Call: unix.SYS_IOPERM},
}
