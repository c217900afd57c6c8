// Package memfd makes memory that several processes map: pages of metrics, the board of the simulated machine, and what
// simulated GPUs share.
//
// Such memory is sealed. A process that could shorten it would end every other process that looks at it (SIGBUS), and
// the processes that share memory here do not trust each other: a worker serves a client, the supervisor reads what the
// worker counts.
package memfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// seals keep the size as it is, and the seals themselves.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// New gives the descriptor of size bytes of zeroed memory whose size nobody can change. The caller closes it. name is
// seen in /proc only.
func New(name string, size int64) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memory to share (%s): %w", name, err)
	}
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return -1, fmt.Errorf("memory to share (%s), %d bytes: %w", name, size, errors.Join(err, unix.Close(fd)))
	}
	return fd, nil
}
