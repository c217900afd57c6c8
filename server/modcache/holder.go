package modcache

import (
	"bytes"
	"container/list"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

// sealed is an image's memory: frozen, and with the right hash. Cache.mu guards it.
type sealed struct {
	entry   *entry
	fd      int
	holders int
	idle    *list.Element // in Cache.idle while nobody holds it and the image is in the index
}

// Holder is what one worker may have of a cache: the images of its tenant. What it was given stays one memory for all
// until the holder is closed. Its methods may be called by several goroutines, but for Close, behind which all fail.
type Holder struct {
	cache *Cache
	owner *owner

	// guarded by Cache.mu
	held   map[*sealed]struct{}
	size   int64 // of what is held
	closed bool
}

// Holder gives a worker its view.
func (c *Cache) Holder(tenant string) *Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Holder{cache: c, owner: c.owner(c.folder(tenant)), held: make(map[*sealed]struct{})}
}

// Close says that the worker is gone.
func (h *Holder) Close() {
	c := h.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	h.closed = true
	for s := range h.held {
		if s.holders--; s.holders > 0 {
			continue
		}
		if s.entry.memory != s { // the image was evicted meanwhile
			_ = unix.Close(s.fd)
			continue
		}
		c.rest(s)
	}
	clear(h.held)
}

// begin notes that the holder is at work; end has to follow.
func (h *Holder) begin() error {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.cache.work.Add(1)
	return nil
}

func (h *Holder) end() { h.cache.work.Done() }

// Get gives a descriptor of an image's memory, which the caller closes. The error is fs.ErrNotExist where the tenant
// has no such image.
func (h *Holder) Get(name Hash) (int, error) {
	if err := h.begin(); err != nil {
		return -1, err
	}
	defer h.end()
	e := h.find(name)
	if e == nil {
		return -1, fs.ErrNotExist
	}
	return h.get(e)
}

// find looks in the index, and for what another server has put into the folder.
func (h *Holder) find(name Hash) *entry {
	c := h.cache
	c.mu.Lock()
	e := h.owner.images[name]
	c.mu.Unlock()
	if e != nil {
		return e
	}
	info, err := os.Lstat(c.path(h.owner, name))
	if err != nil || !info.Mode().IsRegular() || info.Size() <= 0 || info.Size() > MaxBytes {
		return nil
	}
	c.mu.Lock()
	if e = h.owner.images[name]; e == nil {
		e = c.enter(h.owner, name, info.Size(), info.ModTime())
	}
	gone := c.makeRoom(0)
	c.mu.Unlock()
	c.remove(gone)
	return e
}

func (h *Holder) get(e *entry) (int, error) {
	if fd, err := h.hold(e); fd >= 0 || err != nil {
		return fd, err
	}
	e.loading.Lock()
	defer e.loading.Unlock()
	if fd, err := h.hold(e); fd >= 0 || err != nil {
		return fd, err // somebody else has read it meanwhile
	}
	h.owner.slots <- struct{}{}
	defer func() { <-h.owner.slots }()
	fd, err := h.cache.load(e)
	if err != nil {
		return -1, h.cache.lost(e, err)
	}
	return h.adopt(e, fd)
}

// lost notes that an image cannot be read. A damaged one is removed.
func (c *Cache) lost(e *entry, err error) error {
	path := c.path(e.owner, e.hash)
	switch {
	case errors.Is(err, ErrHash):
		c.cfg.Log.Warn("module cache: removed a damaged image; it will be sent again", "path", path, "error", err)
		os.Remove(path)
	case !errors.Is(err, fs.ErrNotExist):
		c.cfg.Log.Warn("module cache: cannot read an image", "path", path, "error", err)
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(e)
	return fs.ErrNotExist
}

// hold gives a copy of the descriptor if the image is in memory, -1 where it has to be read.
func (h *Holder) hold(e *entry) (int, error) {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	if e.memory == nil {
		if e.used == nil {
			return -1, fs.ErrNotExist // evicted
		}
		return -1, nil
	}
	return h.share(e.memory)
}

// adopt makes frozen memory with the right hash that of an image, and gives a copy of the descriptor, which it takes
// over.
func (h *Holder) adopt(e *entry, fd int) (int, error) {
	c := h.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.used == nil:
		_ = unix.Close(fd)
		return -1, fs.ErrNotExist // evicted meanwhile
	case e.memory != nil:
		_ = unix.Close(fd)
	default:
		e.memory = &sealed{entry: e, fd: fd}
		defer c.rest(e.memory) // if the holder does not take it
	}
	return h.share(e.memory)
}

// share notes that the holder has an image's memory, and gives a copy of its descriptor. Cache.mu is held.
func (h *Holder) share(s *sealed) (int, error) {
	c, e := h.cache, s.entry
	switch _, has := h.held[s]; {
	case h.closed:
		return -1, ErrClosed
	case !has && h.size+e.size > c.cfg.Bytes:
		return -1, fmt.Errorf("%w: this session holds %d bytes of images", ErrNotKept, h.size)
	case !has:
		c.wake(s)
		s.holders++
		h.held[s] = struct{}{}
		h.size += e.size
	}
	if e.used != nil {
		h.owner.order.MoveToFront(e.used)
	}
	return unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 3)
}

// rest keeps memory for a while that nobody holds. c.mu is held.
func (c *Cache) rest(s *sealed) {
	if s.holders > 0 || s.idle != nil {
		return
	}
	s.idle = c.idle.PushFront(s)
	c.idleSize += s.entry.size
	for c.idleSize > c.cfg.Bytes/idleShare || c.idle.Len() > IdleImages {
		c.drop(c.idle.Back().Value.(*sealed).entry)
	}
}

// wake ends the rest. c.mu is held.
func (c *Cache) wake(s *sealed) {
	if s.idle == nil {
		return
	}
	c.idle.Remove(s.idle)
	s.idle = nil
	c.idleSize -= s.entry.size
}

// drop forgets an image's memory. What is held is closed with its last holder. c.mu is held.
func (c *Cache) drop(e *entry) {
	s := e.memory
	if s == nil {
		return
	}
	e.memory = nil
	c.wake(s)
	if s.holders == 0 {
		_ = unix.Close(s.fd)
	}
}

// load reads an image's file into frozen memory.
func (c *Cache) load(e *entry) (int, error) {
	path := c.path(e.owner, e.hash)
	f, err := os.Open(path)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	fd, err := memfd.Draft(memoryName, e.size)
	if err != nil {
		return -1, err
	}
	err = pass(e.hash, e.size, f, fdWriter(fd))
	if err == nil {
		err = memfd.Freeze(fd)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // the modification time is what the next server's index goes by
	return fd, nil
}

// Put stores an image that lies in frozen memory and gives a descriptor of the memory that is to be used for it. The
// error is [ErrHash] where the bytes have another hash, [ErrNotKept] where they are not stored.
func (h *Holder) Put(name Hash, fd int) (int, error) {
	if err := h.begin(); err != nil {
		return -1, err
	}
	defer h.end()
	if e := h.find(name); e != nil {
		if have, err := h.get(e); !errors.Is(err, fs.ErrNotExist) {
			return have, err
		}
	}
	size, err := memfd.Frozen(fd)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrHash, err)
	}
	h.owner.slots <- struct{}{}
	defer func() { <-h.owner.slots }()
	e, err := h.store(name, fd, size)
	if err != nil {
		return -1, err
	}
	mine, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return h.adopt(e, mine)
}

func (h *Holder) store(name Hash, fd int, size int64) (e *entry, err error) {
	c, o := h.cache, h.owner
	charge := c.charge(size)
	if size <= 0 || size > MaxBytes || charge > c.cfg.Bytes {
		return nil, c.refused(fmt.Errorf("it has %d bytes, the cache has %d", size, c.cfg.Bytes))
	}
	c.mu.Lock()
	c.book(o, charge)
	gone := c.makeRoom(0)
	full := c.charged > c.cfg.Bytes
	c.mu.Unlock()
	c.remove(gone)
	if full {
		err = errors.New("the cache is full of what is being written")
	} else {
		err = c.write(o, name, fd, size)
	}
	c.mu.Lock()
	c.book(o, -charge)
	if err == nil {
		if e = o.images[name]; e == nil { // else somebody else was faster
			e = c.enter(o, name, size, time.Now())
		}
		c.figures.Stored++
	}
	c.mu.Unlock()
	switch {
	case errors.Is(err, ErrHash):
		return nil, err
	case err != nil:
		return nil, c.refused(err)
	}
	return e, nil
}

// write makes an image's file.
func (c *Cache) write(o *owner, name Hash, fd int, size int64) (err error) {
	path := c.path(o, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := c.create(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := pass(name, size, fdReader(fd), f); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// passing is what copies and hashes.
type passing struct {
	hash   hash.Hash
	buffer []byte
}

var passings = sync.Pool{New: func() any { return &passing{sha256.New(), make([]byte, 1<<20)} }}

// pass copies so many bytes and says whether they have the hash.
func pass(want Hash, size int64, from io.ReaderAt, to io.WriterAt) error {
	p := passings.Get().(*passing)
	defer passings.Put(p)
	p.hash.Reset()
	for at := int64(0); at < size; {
		b := p.buffer[:min(int64(len(p.buffer)), size-at)]
		if n, err := from.ReadAt(b, at); n < len(b) {
			return fmt.Errorf("%w: it ends after %d of %d bytes: %w", ErrHash, at+int64(n), size, err)
		}
		p.hash.Write(b)
		if _, err := to.WriteAt(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	if !bytes.Equal(p.hash.Sum(nil), want[:]) {
		return fmt.Errorf("%w: %d bytes named %x", ErrHash, size, want[:8])
	}
	return nil
}

// fdReader and fdWriter read and write memory without mapping it.
type (
	fdReader int
	fdWriter int
)

// ReadAt is of io.ReaderAt.
func (f fdReader) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		m, err := unix.Pread(int(f), b[n:], at+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return n, err
		case m == 0:
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

// WriteAt is of io.WriterAt.
func (f fdWriter) WriteAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		m, err := unix.Pwrite(int(f), b[n:], at+int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}
