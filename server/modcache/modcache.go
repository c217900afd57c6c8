// Package modcache keeps module images on the server's disk, named by their SHA-256, so that a program's second run
// uploads nothing.
//
// The supervisor alone has a [Cache]: the folder, and an index of it in memory. Workers get images as sealed memory
// ([Image]), which nobody can change or shorten, and hand over what their clients have sent in the same form ([Draft]).
// Each worker has a [Holder], through which it sees the images of its tenant and no others; a tenant has an image by
// having brought it. Sealed memory of one image is shared by the sessions that use it at the same time.
//
// The cache is bounded in bytes, and since each image counts as a certain size at least, in number too. When it is
// full, the tenant with the largest part loses what it used longest ago: nobody can push out the images of those who
// have less. Looking for an image and storing one take a time that does not depend on how many there are.
//
// Files are written under a temporary name, and their hash is verified whenever they are read: a damaged file is
// removed and counts as absent. Several servers may use one folder: what another has stored is found, and what it has
// evicted counts as absent; each counts what it knows of. Where the disk is full or cannot be written, images are not
// kept, and one warning is logged.
//
// Lock order: entry.loading, then a slot of the owner, then Cache.mu. Files are read and written without Cache.mu.
package modcache

import (
	"container/list"
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

// Bounds of a cache whose configuration says nothing, and of every cache.
const (
	DefaultBytes = 8 << 30
	MaxImages    = 1 << 16 // in a full cache; an image counts as the bytes divided by this at least
	IdleImages   = 256     // are kept in memory at most while no session uses them
	idleShare    = 16      // and the cache's bytes divided by this
	ownerSlots   = 4       // images of one tenant that are read or stored at a time
)

// Errors of [Holder].
var (
	// ErrNotKept says that an image could not be stored. Its hash may not have been looked at.
	ErrNotKept = errors.New("the module cache did not keep an image")
	ErrClosed  = errors.New("the session is over")
)

// Config says how a cache is kept.
type Config struct {
	Dir   string // made when the first image comes
	Bytes int64  // bound; 0: DefaultBytes
	// Share lets every tenant load what another has brought, by the hash alone.
	Share bool
	Log   *slog.Logger
}

// Cache is a folder of images with its index. See [Open].
type Cache struct {
	cfg  Config
	warn sync.Once
	work sync.WaitGroup // holders that read or write
	most int64          // MaxImages; tests lower it
	// create makes a temporary file; tests replace it
	create func(dir string) (file, error)

	mu       sync.Mutex // guards what follows, and owners and entries
	byFolder map[string]*owner
	owners   owners
	charged  int64
	idle     list.List // of *sealed that nobody holds; what was used last is in front
	idleSize int64
	figures  Figures
}

type file interface {
	io.WriterAt
	io.Closer
	Name() string
}

// Figures are what a cache says of itself.
type Figures struct {
	Images  int
	Bytes   int64
	Stored  uint64 // images, since the start
	Evicted uint64
	Refused uint64           // images that were not stored, for whatever reason
	Tenants map[string]int64 // what a tenant's images count as, in bytes, by tenant; "": those that all share
}

// DefaultDir is $XDG_CACHE_HOME/scuda/modules, ~/.cache/scuda/modules where that is unset.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the module cache: %w; name one with --cache-dir", err)
	}
	return filepath.Join(base, "scuda", "modules"), nil
}

// Open reads what lies in the folder.
func Open(cfg Config) *Cache {
	if cfg.Bytes <= 0 {
		cfg.Bytes = DefaultBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{
		cfg: cfg, most: MaxImages, byFolder: make(map[string]*owner),
		create: func(dir string) (file, error) { return os.CreateTemp(dir, tempPrefix+"*") },
	}
	if err := c.build(); err != nil {
		cfg.Log.Warn("module cache: cannot read the folder; what lies there will be sent again", "dir", cfg.Dir,
			"error", err)
	}
	return c
}

// Folders below the cache's: what all tenants share, and a folder for each.
const (
	sharedFolder  = "shared"
	tenantsFolder = "tenants"
	tempPrefix    = ".new-"
)

func (c *Cache) folder(tenant string) string {
	if c.cfg.Share {
		return sharedFolder
	}
	return filepath.Join(tenantsFolder, tenant)
}

func tenantOf(folder string) string {
	name, ok := strings.CutPrefix(folder, tenantsFolder+string(filepath.Separator))
	if !ok {
		return "" // what all share
	}
	return name
}

// path is where an image lies: in a folder of the first byte of its hash, so that folders stay small.
func (c *Cache) path(o *owner, h Hash) string {
	name := hex.EncodeToString(h[:])
	return filepath.Join(c.cfg.Dir, o.folder, name[:2], name[2:])
}

// charge is what an image counts as.
func (c *Cache) charge(size int64) int64 { return max(size, c.cfg.Bytes/c.most, 1) }

// found is a file of the folder.
type found struct {
	folder string
	hash   Hash
	size   int64
	used   time.Time
}

// build makes the index. What is no image's file stays where it is, but for what writers that died have left, and for
// the files of servers that kept one folder for all.
func (c *Cache) build() error {
	var files []found
	err := filepath.WalkDir(c.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		rest, err := filepath.Rel(c.cfg.Dir, path)
		if err != nil {
			return err
		}
		folder, h, ok := parsePath(rest)
		switch {
		case !ok:
			if strings.HasPrefix(d.Name(), tempPrefix) && time.Since(info.ModTime()) > time.Hour {
				return ignoreGone(os.Remove(path))
			}
		case folder == ".":
			return ignoreGone(os.Remove(path))
		case folder != sharedFolder && filepath.Dir(folder) != tenantsFolder:
		case info.Mode().IsRegular() && info.Size() > 0 && info.Size() <= MaxBytes:
			files = append(files, found{folder, h, info.Size(), info.ModTime()})
		}
		return nil
	})
	slices.SortFunc(files, func(a, b found) int { return a.used.Compare(b.used) })
	c.mu.Lock()
	var gone []*entry
	for _, f := range files {
		c.enter(c.owner(f.folder), f.hash, f.size, f.used)
		gone = append(gone, c.makeRoom(0)...)
	}
	c.mu.Unlock()
	c.remove(gone)
	return ignoreGone(err)
}

// parsePath reads FOLDER/12/3456….
func parsePath(path string) (folder string, h Hash, ok bool) {
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	bytes, err := hex.DecodeString(filepath.Base(dir) + name)
	if err != nil || len(bytes) != len(h) || len(name) != 2*len(h)-2 {
		return "", h, false
	}
	return filepath.Dir(dir), Hash(bytes), true
}

// enter puts an image into the index. c.mu is held.
func (c *Cache) enter(o *owner, h Hash, size int64, used time.Time) *entry {
	e := &entry{owner: o, hash: h, size: size, charge: c.charge(size), touched: used.Unix()}
	e.used = o.order.PushFront(e)
	o.images[h] = e
	c.figures.Images++
	c.figures.Bytes += size
	c.book(o, e.charge)
	return e
}

// makeRoom takes out of the index what has to go for so much more, and gives it to the caller, who removes the files.
// c.mu is held.
func (c *Cache) makeRoom(charge int64) (gone []*entry) {
	for c.charged+charge > c.cfg.Bytes && c.charged > 0 {
		last := c.owners[0].order.Back()
		if last == nil {
			break // the largest part is what is being written
		}
		e := last.Value.(*entry)
		c.take(e)
		c.figures.Evicted++
		gone = append(gone, e)
	}
	return gone
}

// take takes an image out of the index, if it is still there. c.mu is held.
func (c *Cache) take(e *entry) {
	if e.used == nil {
		return
	}
	o := e.owner
	o.order.Remove(e.used)
	e.used = nil
	delete(o.images, e.hash)
	c.figures.Images--
	c.figures.Bytes -= e.size
	c.book(o, -e.charge)
	c.drop(e)
}

// remove removes the files of evicted images.
func (c *Cache) remove(gone []*entry) {
	for _, e := range gone {
		_ = os.Remove(c.path(e.owner, e.hash))
	}
}

// Figures are those of now.
func (c *Cache) Figures() Figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.figures
	f.Tenants = make(map[string]int64, len(c.owners))
	for _, o := range c.owners {
		if o.charged > 0 {
			f.Tenants[tenantOf(o.folder)] += o.charged
		}
	}
	return f
}

// Close waits for the holders that are at work, and gives the memory back that nobody holds. The holders are closed
// before.
func (c *Cache) Close() {
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.idle.Front(); e != nil; e = c.idle.Front() {
		c.drop(e.Value.(*sealed).entry)
	}
}

// refused counts an image that is not kept, and warns of the first that could not be written.
func (c *Cache) refused(err error) error {
	c.mu.Lock()
	c.figures.Refused++
	c.mu.Unlock()
	if errors.As(err, new(*fs.PathError)) || errors.As(err, new(*os.LinkError)) {
		c.warn.Do(func() {
			c.cfg.Log.Warn("module cache: cannot write; images stay in the memory of their sessions and are sent again by "+
				"the next program. Make room, or name another folder with --cache-dir", "dir", c.cfg.Dir, "error", err)
		})
	}
	return fmt.Errorf("%w: %w", ErrNotKept, err)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
