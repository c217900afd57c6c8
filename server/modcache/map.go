package modcache

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps a whole file read-only, outside the Go heap.
func mapFile(path string) (*Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, fmt.Errorf("%s is not a file with content", path)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return &Image{Data: data, mapped: true}, nil
}

// Close gives the image's memory back.
func (i *Image) Close() {
	if i.mapped {
		_ = unix.Munmap(i.Data)
	}
	i.Data, i.mapped = nil, false
}
