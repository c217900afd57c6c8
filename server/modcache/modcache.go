// Package modcache keeps module images on the server's disk, named by their SHA-256, so that a program's second run
// uploads nothing.
//
// A file is written under a temporary name, synced by rename, and its hash is verified whenever it is opened: a damaged
// file is removed and counts as absent. The folder is bounded; what was used longest ago goes first. Several worker
// processes share one folder without locks, since files never change once they have their name and a removed file stays
// readable for whoever has mapped it. Where the disk is full or cannot be written, the image is kept in the memory of
// the session that brought it and one warning is logged.
package modcache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// DefaultBytes bounds a cache whose configuration says nothing.
const DefaultBytes = 8 << 30

// Hash names an image.
type Hash = [sha256.Size]byte

// ErrHash says that bytes and hash do not belong together.
var ErrHash = errors.New("module image does not match its hash")

// Cache is a folder of images. The zero value is not usable; see Open.
type Cache struct {
	dir   string // "" keeps images in memory only
	limit int64
	log   *slog.Logger
	warn  sync.Once

	create func(dir string) (file, error) // replaced by tests
}

type file interface {
	io.WriteCloser
	Name() string
}

// Image is a verified image; Data stays valid until Close.
type Image struct {
	Data   []byte
	mapped bool
}

// DefaultDir is $XDG_CACHE_HOME/scuda/modules, ~/.cache/scuda/modules where that is unset.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the module cache: %w; name one with --cache-dir", err)
	}
	return filepath.Join(base, "scuda", "modules"), nil
}

// Open uses the folder dir, made on the first Put, with at most limit bytes (0: DefaultBytes). An empty dir keeps
// nothing on disk.
func Open(dir string, limit int64, log *slog.Logger) *Cache {
	if limit <= 0 {
		limit = DefaultBytes
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Cache{dir: dir, limit: limit, log: log, create: func(dir string) (file, error) {
		return os.CreateTemp(dir, tempPrefix+"*")
	}}
}

const tempPrefix = ".new-"

func (c *Cache) path(h Hash) string {
	name := hex.EncodeToString(h[:])
	return filepath.Join(c.dir, name[:2], name[2:])
}

// Get returns the image named h, or nil where it is not there or was damaged.
func (c *Cache) Get(h Hash) *Image {
	if c.dir == "" {
		return nil
	}
	path := c.path(h)
	img, err := mapFile(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("module cache: cannot read an image", "path", path, "error", err)
		}
		return nil
	}
	if sha256.Sum256(img.Data) != h {
		c.log.Warn("module cache: removed a damaged image; it will be sent again", "path", path)
		img.Close()
		os.Remove(path)
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // the modification time is what the eviction goes by
	return img
}

// Put stores data under h and returns it as an image. It fails only when data does not match h: without a usable disk
// the image lives in memory.
func (c *Cache) Put(h Hash, data []byte) (*Image, error) {
	if sha256.Sum256(data) != h {
		return nil, fmt.Errorf("%w: %d bytes named %x", ErrHash, len(data), h[:8])
	}
	memory := &Image{Data: data}
	if c.dir == "" {
		return memory, nil
	}
	if err := c.store(h, data); err != nil {
		c.warn.Do(func() {
			c.log.Warn("module cache: cannot write; images stay in memory and are sent again by the next program. "+
				"Make room, or name another folder with --cache-dir", "dir", c.dir, "error", err)
		})
		return memory, nil
	}
	img, err := mapFile(c.path(h))
	if err != nil { // another process may have evicted it already
		return memory, nil
	}
	return img, nil
}

func (c *Cache) store(h Hash, data []byte) (err error) {
	path := c.path(h)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := c.evict(int64(len(data))); err != nil {
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
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Size is how many images lie in the folder and how many bytes they take.
func (c *Cache) Size() (images int, bytes int64, err error) {
	if c.dir == "" {
		return 0, 0, nil
	}
	entries, bytes, err := c.list()
	return len(entries), bytes, err
}

// entry is an image's file.
type entry struct {
	path string
	size int64
	used time.Time
}

// list gives the images' files and their bytes in all. What writers that died have left is removed.
func (c *Cache) list() (entries []entry, total int64, err error) {
	err = filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		if strings.HasPrefix(d.Name(), tempPrefix) {
			if time.Since(info.ModTime()) > time.Hour { // its writer died
				os.Remove(path)
			}
			return nil
		}
		total += info.Size()
		entries = append(entries, entry{path, info.Size(), info.ModTime()})
		return nil
	})
	return entries, total, err
}

// evict makes room for need bytes.
func (c *Cache) evict(need int64) error {
	if need > c.limit {
		return fmt.Errorf("an image of %d bytes is larger than the cache (%d)", need, c.limit)
	}
	entries, total, err := c.list()
	if err != nil {
		return err
	}
	total += need
	slices.SortFunc(entries, func(a, b entry) int { return a.used.Compare(b.used) })
	for _, e := range entries {
		if total <= c.limit {
			break
		}
		if err := os.Remove(e.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total -= e.size
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
