package modcache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func inode(t *testing.T, fd int, err error) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return st.Ino
}

// Sessions that use an image have one memory for it, as long as one of them does, or until others need the room.
func TestSharedMemory(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir(), Bytes: 16_000}) // 1,000 bytes stay when nobody uses them
	one, first := image(900, 1)
	two, second := image(800, 2)
	a, b := c.Holder("x"), c.Holder("x")
	if err := put(t, a, first, one); err != nil {
		t.Fatal(err)
	}
	get := func(h *Holder, name Hash) uint64 {
		fd, err := h.Get(name)
		return inode(t, fd, err)
	}
	was := get(a, first)
	if is := get(b, first); is != was {
		t.Error("two sessions have two memories")
	}
	a.Close()
	if _, err := a.Get(first); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed holder: %v", err)
	}
	if c.idle.Len() != 0 {
		t.Error("nobody uses what one uses")
	}
	b.Close()
	if c.idleSize != 900 {
		t.Errorf("%d bytes are kept", c.idleSize)
	}
	d := c.Holder("x")
	if is := get(d, first); is != was {
		t.Error("read again though it was kept")
	}
	if err := put(t, d, second, two); err != nil {
		t.Fatal(err)
	}
	d.Close()
	if c.idle.Len() != 1 || c.idleSize > 1000 {
		t.Errorf("%d images of %d bytes are kept", c.idle.Len(), c.idleSize)
	}
}

// A session that holds an image keeps it when it is evicted, and what it may hold is bounded.
func TestEvictedWhileHeld(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir(), Bytes: 2000})
	h := holder(t, c, "a")
	one, first := image(1500, 1)
	if err := put(t, h, first, one); err != nil {
		t.Fatal(err)
	}
	two, second := image(1500, 2)
	if err := put(t, h, second, two); !errors.Is(err, ErrNotKept) {
		t.Errorf("more than the cache has: %v", err)
	}
	if has(t, h, first, one) {
		t.Error("the first was not evicted")
	}
	if h.Close(); c.idle.Len() != 0 {
		t.Errorf("%d memories stay", c.idle.Len())
	}
}

// Everything at once; the race detector watches, and nothing is left open.
func TestManySessions(t *testing.T) {
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	c := Open(Config{Dir: t.TempDir(), Bytes: 20_000})
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			h := c.Holder(fmt.Sprint("t", n%3))
			defer h.Close()
			for i := range 40 {
				data, name := image(1000, (n+i)%25)
				fd, err := h.Get(name)
				if errors.Is(err, fs.ErrNotExist) {
					var d *Draft
					if d, err = NewDraft(len(data)); err != nil {
						t.Error(err)
						return
					}
					copy(d.Data, data)
					img, bad := d.Image()
					if bad != nil {
						t.Error(bad)
						return
					}
					fd, err = h.Put(name, img.FD())
					img.Close()
				}
				if errors.Is(err, ErrNotKept) || errors.Is(err, fs.ErrNotExist) {
					continue // it was full, or others were faster to evict it
				}
				if err != nil {
					t.Error(err)
					return
				}
				img, err := OpenImage(fd)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(img.Data, data) {
					t.Error("another image")
				}
				img.Close()
			}
		})
	}
	all.Wait()
	c.Close()
	if c.charged > 20_000 || c.idleSize != 0 {
		t.Errorf("charged %d, idle %d", c.charged, c.idleSize)
	}
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if len(after) > len(before) {
		t.Errorf("%d descriptors, before %d", len(after), len(before))
	}
}

// BenchmarkPut stores small images into caches that hold many.
func BenchmarkPut(b *testing.B) {
	for _, full := range []int{0, 10_000} {
		b.Run(fmt.Sprint(full), func(b *testing.B) {
			c := open(b, Config{Dir: b.TempDir()})
			h := holder(b, c, "a")
			n := 0
			next := func() {
				data, name := image(9, n)
				n++
				d, err := NewDraft(len(data))
				if err != nil {
					b.Fatal(err)
				}
				copy(d.Data, data)
				img, err := d.Image()
				if err != nil {
					b.Fatal(err)
				}
				fd, err := h.Put(name, img.FD())
				img.Close()
				if err != nil {
					b.Fatal(err)
				}
				unix.Close(fd)
				if n%100 == 0 { // as sessions do
					h.Close()
					h = c.Holder("a")
				}
			}
			for range full {
				next()
			}
			for b.Loop() {
				next()
			}
		})
	}
}
