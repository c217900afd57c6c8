package isolation

import "golang.org/x/sys/unix"

const (
	architecture = unix.AUDIT_ARCH_AARCH64
	otherCalls   = 1 << 31 // there are none
)

var ofArchitecture []Rule
