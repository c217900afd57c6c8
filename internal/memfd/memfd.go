// Package memfd makes memory that several processes map: pages of metrics, the board of the simulated machine, what
// simulated GPUs share, and module images.
//
// Such memory is sealed. A process that could shorten it would end every other process that looks at it (SIGBUS), and
// the processes that share memory here do not trust each other: a worker serves a client, the supervisor reads what the
// worker counts. Memory whose content is not to change either is made as a draft, filled and frozen.
package memfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Seals: those that keep the size as it is, and those that keep all as it is, with the seals themselves.
const (
	ofSize = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	frozen = ofSize | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
)

// ErrSeals says that memory lacks the seals that would make its content safe to rely on.
var ErrSeals = errors.New("not memory that stays as it is")

// New gives the descriptor of size bytes of zeroed memory whose size nobody can change. The caller closes it. name is
// seen in /proc only.
func New(name string, size int64) (int, error) { return create(name, size, ofSize|unix.F_SEAL_SEAL) }

// Draft is New for memory that is to be frozen once it is filled.
func Draft(name string, size int64) (int, error) { return create(name, size, ofSize) }

func create(name string, size int64, seals int) (int, error) {
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

// Freeze makes a draft what it will be for ever. It fails while somebody has it mapped for writing.
func Freeze(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, frozen); err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	return nil
}

// Fixed gives the size of memory that nobody can make longer or shorter, and [ErrSeals] for every other descriptor:
// reading it waits for nobody, and there is as much of it as it says.
func Fixed(fd int) (int64, error) { return sealed(fd, ofSize) }

// Frozen gives the size of memory that somebody else has frozen, and [ErrSeals] for every other descriptor: only memory
// of this kind can have all of the seals, so that reading it waits for nobody and finds always the same.
func Frozen(fd int) (int64, error) { return sealed(fd, frozen) }

// sealed gives the size of memory that has seals.
func sealed(fd, want int) (int64, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&want != want {
		return 0, errors.Join(ErrSeals, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrSeals, err)
	}
	return st.Size, nil
}
