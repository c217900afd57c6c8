package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A log is a file and those that it was before: FILE.1 is the youngest of them, FILE.[Files] the oldest.
const (
	MaxBytes = 16 << 20
	MaxAge   = 30 * 24 * time.Hour
	Files    = 12
)

// None switches the log off; FileOf is what a server's is called by default in its state folder.
const None = "none"

// FileOf is the name of the log of the server of a port.
func FileOf(folder string, port int) string {
	return filepath.Join(folder, fmt.Sprintf("usage-%d.jsonl", port))
}

// Log is a file that records are appended to; nil is none. Its lock is held while it writes.
type Log struct {
	path string

	mu    sync.Mutex
	file  *os.File // nil: closed
	bytes int64
	begun time.Time // of the file

	most int64
	age  time.Duration
}

// Open opens a log, behind what it has already.
func Open(path string) (*Log, error) {
	l := &Log{path: path, most: MaxBytes, age: MaxAge}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("usage log: %w", err)
	}
	return l, nil
}

// open opens the file. l.mu is held, or nobody else has l.
func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", l.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.bytes, l.begun = f, info.Size(), time.Now()
	head := make([]byte, MaxLine)
	n, _ := f.ReadAt(head, 0) // the file says itself when it began
	if line, _, ok := strings.Cut(string(head[:n]), "\n"); ok {
		if r, err := Parse([]byte(line)); err == nil {
			l.begun = r.From
		}
	}
	if l.bytes > 0 { // what a server that died wrote may lack its end
		var last [1]byte
		if _, err := f.ReadAt(last[:], l.bytes-1); err == nil && last[0] != '\n' {
			k, _ := f.WriteString("\n")
			l.bytes += int64(k)
		}
	}
	return nil
}

// Write appends a record, in a new file where the old one is full.
func (l *Log) Write(r *Record) error {
	if l == nil {
		return nil
	}
	line, err := Append(nil, r)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fs.ErrClosed
	}
	if l.bytes > 0 && (l.bytes+int64(len(line)) > l.most || time.Since(l.begun) > l.age) {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(line)
	l.bytes += int64(n)
	return err
}

// rotate begins a new file. l.mu is held.
func (l *Log) rotate() error {
	err := l.file.Close()
	l.file = nil
	for n := Files; n > 0 && err == nil; n-- {
		if err = os.Rename(older(l.path, n-1), older(l.path, n)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, l.open())
}

// older is what the file is called after so many rotations.
func older(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// Close ends the log. It may be called again.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}
