package modcache

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func image(n int, seed byte) ([]byte, Hash) {
	b := bytes.Repeat([]byte{seed}, n)
	return b, sha256.Sum256(b)
}

func TestPutGet(t *testing.T) {
	dir := t.TempDir()
	data, h := image(5000, 1)
	c := Open(dir, 0, nil)
	if c.Get(h) != nil {
		t.Fatal("an empty cache has the image")
	}
	img, err := c.Put(h, data)
	if err != nil || !bytes.Equal(img.Data, data) {
		t.Fatalf("Put: %v", err)
	}
	img.Close()
	again := Open(dir, 0, nil).Get(h) // as another process would
	if again == nil || !bytes.Equal(again.Data, data) {
		t.Fatal("the image did not survive")
	}
	again.Close()
}

func TestPutWrongHash(t *testing.T) {
	dir := t.TempDir()
	data, _ := image(10, 1)
	if _, err := Open(dir, 0, nil).Put(Hash{}, data); !errors.Is(err, ErrHash) {
		t.Fatalf("got %v, want ErrHash", err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(files) != 0 {
		t.Fatalf("left files behind: %v", files)
	}
}

func TestDamagedImageIsRemoved(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"changed":   func(p string) error { return os.WriteFile(p, []byte("other"), 0o600) },
		"truncated": func(p string) error { return os.Truncate(p, 3) },
		"empty":     func(p string) error { return os.Truncate(p, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			c := Open(t.TempDir(), 0, nil)
			data, h := image(100, 7)
			img, err := c.Put(h, data)
			if err != nil {
				t.Fatal(err)
			}
			img.Close()
			if err := damage(c.path(h)); err != nil {
				t.Fatal(err)
			}
			if c.Get(h) != nil {
				t.Fatal("a damaged image was served")
			}
			img, err = c.Put(h, data)
			if err != nil {
				t.Fatal(err)
			}
			img.Close()
			if c.Get(h) == nil {
				t.Fatal("the image could not be replaced")
			}
		})
	}
}

func TestEvictsLeastRecentlyUsed(t *testing.T) {
	c := Open(t.TempDir(), 2500, nil)
	var hashes []Hash
	for i := range 3 {
		data, h := image(1000, byte(i))
		img, err := c.Put(h, data)
		if err != nil {
			t.Fatal(err)
		}
		img.Close()
		if i < 2 {
			old := time.Now().Add(time.Duration(i-10) * time.Minute)
			if err := os.Chtimes(c.path(h), old, old); err != nil {
				t.Fatal(err)
			}
		}
		hashes = append(hashes, h)
	}
	if n, bytes, err := c.Size(); n != 2 || bytes != 2000 || err != nil {
		t.Errorf("%d images of %d bytes, %v", n, bytes, err)
	}
	for i, want := range []bool{false, true, true} {
		img := c.Get(hashes[i])
		if got := img != nil; got != want {
			t.Errorf("image %d kept: %v, want %v", i, got, want)
		}
	}
}

type fullDisk struct{ *os.File }

func (fullDisk) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func TestFullDiskFallsBackToMemory(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	c := Open(dir, 0, slog.New(slog.NewTextHandler(&log, nil)))
	c.create = func(dir string) (file, error) {
		f, err := os.CreateTemp(dir, tempPrefix+"*")
		return fullDisk{f}, err
	}
	for i := range 3 {
		data, h := image(100, byte(i))
		img, err := c.Put(h, data)
		if err != nil || !bytes.Equal(img.Data, data) {
			t.Fatalf("image %d: %v", i, err)
		}
	}
	if n := strings.Count(log.String(), "--cache-dir"); n != 1 {
		t.Errorf("%d warnings, want exactly one:\n%s", n, log.String())
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	hidden, _ := filepath.Glob(filepath.Join(dir, "*", ".*"))
	if len(left)+len(hidden) != 0 {
		t.Errorf("left behind: %v %v", left, hidden)
	}
}

func TestFolderCannotBeMade(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := Open(filepath.Join(blocked, "cache"), 0, nil)
	data, h := image(100, 1)
	img, err := c.Put(h, data)
	if err != nil || !bytes.Equal(img.Data, data) {
		t.Fatalf("no fallback to memory: %v", err)
	}
	if c.Get(h) != nil {
		t.Fatal("found an image that was never stored")
	}
}
