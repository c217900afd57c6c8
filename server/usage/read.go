package usage

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Records reads a log, the files that it was before included, the oldest first, and gives each record that ended at a
// moment or later to f. Lines that are no records are counted: a server that died may have left half of one.
func Records(ctx context.Context, path string, since time.Time, f func(*Record)) (bad int, err error) {
	files, err := files(path)
	if err != nil {
		return 0, err
	}
	return readAll(ctx, files, since, f)
}

// Records is [Records] of a log that is being written.
func (l *Log) Records(ctx context.Context, since time.Time, f func(*Record)) (bad int, err error) {
	l.mu.Lock() // so that no file gets another name meanwhile
	files, err := files(l.path)
	l.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return readAll(ctx, files, since, f)
}

// files opens the files of a log, the oldest first.
func files(path string) (all []*os.File, err error) {
	for n := Files; n >= 0; n-- {
		file, err := os.Open(older(path, n))
		switch {
		case err == nil:
			all = append(all, file)
		case !errors.Is(err, fs.ErrNotExist):
			closeAll(all)
			return nil, fmt.Errorf("usage log: %w", err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("usage log: %w: %s", fs.ErrNotExist, path)
	}
	return all, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// readAll reads files and closes them.
func readAll(ctx context.Context, files []*os.File, since time.Time, f func(*Record)) (bad int, err error) {
	defer closeAll(files)
	for _, file := range files {
		n, err := read(ctx, file, since, f)
		if bad += n; err != nil {
			return bad, fmt.Errorf("usage log: %s: %w", file.Name(), err)
		}
	}
	return bad, nil
}

// read reads the lines of one file.
func read(ctx context.Context, from io.Reader, since time.Time, f func(*Record)) (bad int, err error) {
	lines := bufio.NewReaderSize(from, MaxLine+1)
	for {
		if err := ctx.Err(); err != nil {
			return bad, err
		}
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) { // the rest of a line that is too long
			bad++
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			line = nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return bad, err
		}
		if len(line) > 0 {
			if r, err := Parse(line); err != nil {
				bad++
			} else if !r.To.Before(since) {
				f(r)
			}
		}
		if err != nil {
			return bad, nil //nolint:nilerr // the end
		}
	}
}

// Sum is what somebody used: a tenant, a session, whoever had leases of a label, or everybody on a day.
type Sum struct {
	Key     string `json:"key"`
	Tenant  string `json:"tenant,omitempty"`  // of a session, as program is
	Program string `json:"program,omitempty"` // as the client says
	Used
	Sessions int `json:"sessions"` // of which there are records
}

// By are the ways to add records up.
func By() []string { return []string{"tenant", "session", "label", "day"} }

// NoLabel is the key of what was used without a lease, or under one without a label.
const NoLabel = "(none)"

// MaxSums is how many sums an [Adder] tells apart; what is beyond is of [Others].
const MaxSums = 10000

// Adder adds records up.
type Adder struct {
	by   string
	sums map[string]*Sum
	seen map[[2]string]bool // sessions of a key
}

// NewAdder gives one; by is one of [By].
func NewAdder(by string) *Adder {
	return &Adder{by, make(map[string]*Sum), make(map[[2]string]bool)}
}

// Add adds a record. A day is where the reader is.
func (a *Adder) Add(r *Record) {
	key := r.Tenant
	switch a.by {
	case "session":
		key = r.Session
	case "label":
		key = cmp.Or(r.Label, NoLabel)
	case "day":
		key = r.To.Local().Format(time.DateOnly)
	}
	s := a.sums[key]
	if s == nil && len(a.sums) >= MaxSums {
		key = Others
		s = a.sums[key]
	}
	if s == nil {
		s = &Sum{Key: key}
		if a.by == "session" && key != Others {
			s.Tenant, s.Program = r.Tenant, r.Program
		}
		a.sums[key] = s
	}
	s.Used.Add(r.Used)
	if k := [2]string{key, r.Session}; !a.seen[k] {
		a.seen[k] = true
		s.Sessions++
	}
}

// Sums are the sums: days in their order, others by GPU time, the most first.
func (a *Adder) Sums() []Sum {
	list := []Sum{}
	for _, s := range a.sums {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(x, y Sum) int {
		if a.by == "day" {
			return cmp.Compare(x.Key, y.Key)
		}
		return cmp.Or(cmp.Compare(y.GPU, x.GPU), cmp.Compare(x.Key, y.Key))
	})
	return list
}
