// Package atomicfile makes files that are there as a whole or not at all, also where the machine loses its power in
// between or several processes write at a time. The server keeps leases, user ids and keys by it, the client what it
// remembers of servers, and the generator its output. It owns nothing and has no lock: of several writers the last one
// stays.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace puts a file in the place of the one at path, if there is one. Its folder is made (0700) where it is missing.
// When it returns without an error, the file is on the disk; with one, the old file is as it was.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return put(path, content, mode, os.Rename)
}

// Create is Replace for a file that must not be there yet, else the error is [fs.ErrExist]: of several processes that
// begin at once one makes it.
func Create(path string, content []byte, mode fs.FileMode) error {
	return put(path, content, mode, os.Link)
}

func put(path string, content []byte, mode fs.FileMode, place func(from, to string) error) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after a rename, as it should
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(folder)
}

// syncFolder brings the name of a file to the disk: without it an older file may come back with the power.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
