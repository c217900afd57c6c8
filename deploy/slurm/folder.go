package slurm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// record is what is known of a job on a node; everybody may read it.
type record struct {
	Job     uint32 `json:"job"`
	Restart string `json:"restart"` // how often Slurm has restarted the job before
	Server  Server `json:"server"`
	Lease   string `json:"lease"` // its id
	GPUs    int    `json:"gpus"`
	Error   string `json:"error,omitempty"` // why there is none
}

// Names in a job's folder.
const (
	recordName = "job.json"
	tokenName  = "token"
)

const maxRecord = 64 << 10

func (s *Site) folder(node string, job uint32) string {
	return filepath.Join(s.Folder, node, strconv.FormatUint(uint64(job), 10))
}

// locked is a job's folder that nobody else changes.
type locked struct {
	path string
	dir  *os.File
}

// soon is how often somebody looks whether a folder has become free.
const soon = 20 * time.Millisecond

// lock locks a job's folder, and makes it where it is not there.
func lock(ctx context.Context, path string) (*locked, error) {
	for {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && same(dir, path) {
			return &locked{path, dir}, nil
		}
		dir.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		select { // another hook of the same job is at work, or took the folder away
		case <-ctx.Done():
			return nil, fmt.Errorf("another program works in %s", path)
		case <-time.After(soon):
		}
	}
}

// same says whether a folder still has its name.
func same(dir *os.File, path string) bool {
	a, err := dir.Stat()
	b, err2 := os.Lstat(path)
	return err == nil && err2 == nil && os.SameFile(a, b)
}

func (l *locked) unlock() { l.dir.Close() }

// remove takes the folder away.
func (l *locked) remove() error { return os.RemoveAll(l.path) }

// readRecord gives what is known of the job; nil: nothing.
func readRecord(folder string) (*record, error) {
	f, err := os.Open(filepath.Join(folder, recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is no error
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	var r record
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return &r, nil
}

// write puts a file into the folder, all of it or nothing. It is the user's from before it has its name on.
func (l *locked) write(name string, text []byte, mode fs.FileMode, uid int) error {
	path := filepath.Join(l.path, name)
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil && uid >= 0 {
		err = f.Chown(uid, -1)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (l *locked) keep(r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return l.write(recordName, append(text, '\n'), 0o644, -1)
}
