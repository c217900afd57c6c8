package modcache

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

// MaxBytes bounds one image.
const MaxBytes = 2 << 30

// Hash names an image.
type Hash = [sha256.Size]byte

// ErrHash says that bytes and hash do not belong together.
var ErrHash = errors.New("module image does not match its hash")

// Draft is memory in which an image arrives.
type Draft struct {
	Data []byte
	fd   int
}

// NewDraft gives memory for an image of so many bytes. It takes no room before it is written to.
func NewDraft(bytes int) (*Draft, error) {
	fd, err := memfd.Draft(memoryName, int64(bytes))
	if err != nil {
		return nil, err
	}
	data, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory for an image of %d bytes: %w", bytes, err), unix.Close(fd))
	}
	return &Draft{data, fd}, nil
}

const memoryName = "scuda-image"

// Image seals what has arrived. The draft is over, whatever comes of it.
func (d *Draft) Image() (*Image, error) {
	_ = unix.Munmap(d.Data)
	d.Data = nil
	err := memfd.Freeze(d.fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(d.fd))
	}
	img, err := mapImage(d.fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(d.fd))
	}
	img.fd = d.fd
	return img, nil
}

// Close gives the memory of a draft back that has become no image.
func (d *Draft) Close() {
	_ = unix.Munmap(d.Data)
	_ = unix.Close(d.fd)
	d.Data = nil
}

// Image is an image in memory that nobody can change, outside of the Go heap. Data stays valid until Close.
type Image struct {
	Data []byte
	fd   int // -1: the mapping is all that is left
}

// OpenImage maps memory that another process has sealed. It takes the descriptor over.
func OpenImage(fd int) (*Image, error) {
	defer unix.Close(fd)
	return mapImage(fd)
}

func mapImage(fd int) (*Image, error) {
	size, err := memfd.Frozen(fd)
	if err != nil {
		return nil, err
	}
	if size <= 0 || size > MaxBytes {
		return nil, fmt.Errorf("a module image of %d bytes", size)
	}
	data, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a module image of %d bytes: %w", size, err)
	}
	return &Image{data, -1}, nil
}

// FD is the descriptor of the sealed memory, for handing it on; -1 after Detach, and for an image of another process.
func (i *Image) FD() int { return i.fd }

// Verify says whether the image has a hash.
func (i *Image) Verify(h Hash) error {
	if sha256.Sum256(i.Data) != h {
		return fmt.Errorf("%w: %d bytes named %x", ErrHash, len(i.Data), h[:8])
	}
	return nil
}

// Detach closes the descriptor; Data stays.
func (i *Image) Detach() {
	if i.fd >= 0 {
		_ = unix.Close(i.fd)
		i.fd = -1
	}
}

// Close gives the image's memory back.
func (i *Image) Close() {
	i.Detach()
	_ = unix.Munmap(i.Data)
	i.Data = nil
}
