package spawner

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetName names the process, if the calling thread is its first. A worker is started by a descriptor, whose number the
// kernel takes for its name.
func SetName() {
	name := []byte("scuda-worker\x00")
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0) // else top shows a number
}
