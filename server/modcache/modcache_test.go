package modcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// image is n bytes that no other seed has.
func image(n int, seed int) ([]byte, Hash) {
	b := bytes.Repeat([]byte{byte(seed)}, n)
	binary.LittleEndian.PutUint32(b, uint32(seed))
	return b, sha256.Sum256(b)
}

// memory gives frozen memory with content.
func memory(t testing.TB, data []byte) int {
	t.Helper()
	d, err := NewDraft(len(data))
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Data, data)
	img, err := d.Image()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(img.FD()), unix.F_DUPFD_CLOEXEC, 3)
	img.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func open(t testing.TB, cfg Config) *Cache {
	c := Open(cfg)
	t.Cleanup(c.Close)
	return c
}

func holder(t testing.TB, c *Cache, tenant string) *Holder {
	h := c.Holder(tenant)
	t.Cleanup(h.Close)
	return h
}

// put stores an image and says what came of it.
func put(t testing.TB, h *Holder, name Hash, data []byte) error {
	t.Helper()
	fd, err := h.Put(name, memory(t, data))
	if err == nil {
		check(t, fd, data)
	}
	return err
}

func check(t testing.TB, fd int, data []byte) {
	t.Helper()
	img, err := OpenImage(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if !bytes.Equal(img.Data, data) {
		t.Fatal("another image")
	}
}

// has says whether an image is there, and fails where its content is another.
func has(t testing.TB, h *Holder, name Hash, data []byte) bool {
	t.Helper()
	fd, err := h.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	check(t, fd, data)
	return true
}

func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestPutGet(t *testing.T) {
	dir := t.TempDir()
	data, name := image(5000, 1)
	c := open(t, Config{Dir: dir})
	h := holder(t, c, "a")
	if has(t, h, name, data) {
		t.Fatal("an empty cache has the image")
	}
	if err := put(t, h, name, data); err != nil {
		t.Fatal(err)
	}
	for what, h := range map[string]*Holder{
		"the session": h, "the next": holder(t, c, "a"), "another server": holder(t, open(t, Config{Dir: dir}), "a"),
	} {
		if !has(t, h, name, data) {
			t.Errorf("%s does not find it", what)
		}
	}
	f := c.Figures()
	if f.Images != 1 || f.Bytes != 5000 || f.Stored != 1 || f.Tenants["a"] != DefaultBytes/MaxImages {
		t.Errorf("%+v", f)
	}
}

// What one server stores another finds that has the same folder already open, and misses when it is gone.
func TestTwoServers(t *testing.T) {
	dir := t.TempDir()
	a, b := holder(t, open(t, Config{Dir: dir}), "x"), holder(t, open(t, Config{Dir: dir}), "x")
	data, name := image(100, 1)
	if err := put(t, a, name, data); err != nil {
		t.Fatal(err)
	}
	if !has(t, b, name, data) {
		t.Error("the other server does not find it")
	}
	other, second := image(100, 2)
	if err := put(t, a, second, other); err != nil {
		t.Fatal(err)
	}
	c := holder(t, open(t, Config{Dir: dir}), "x")
	for _, f := range files(t, dir) {
		os.Remove(f)
	}
	if has(t, c, second, other) {
		t.Error("found what the other server has removed")
	}
}

func TestPutWrongHash(t *testing.T) {
	dir := t.TempDir()
	data, _ := image(10, 1)
	c := open(t, Config{Dir: dir})
	if err := put(t, holder(t, c, "a"), Hash{}, data); !errors.Is(err, ErrHash) {
		t.Fatalf("got %v, want ErrHash", err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left files behind: %v", left)
	}
	if f := c.Figures(); f.Images != 0 || c.charged != 0 {
		t.Errorf("%+v, charged %d", f, c.charged)
	}
}

// A worker may hand over anything; what it could still change is not read.
func TestPutNeedsFrozenMemory(t *testing.T) {
	data, name := image(4096, 1)
	sized, err := memfd.New("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sized)
	if _, err := unix.Pwrite(sized, data, 0); err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	h := holder(t, open(t, Config{Dir: t.TempDir()}), "a")
	for what, fd := range map[string]int{"a changeable size": sized, "a pipe": pipe[0], "none": -1} {
		if _, err := h.Put(name, fd); !errors.Is(err, memfd.ErrSeals) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := OpenImage(dup(fd)); !errors.Is(err, memfd.ErrSeals) {
			t.Errorf("%s opened: %v", what, err)
		}
	}
	if has(t, h, name, data) {
		t.Error("stored")
	}
}

func dup(fd int) int {
	n, err := unix.Dup(fd)
	if err != nil {
		return -1
	}
	return n
}

func TestDamagedImageIsRemoved(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"changed":   func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("x"), 100), 0o600) },
		"truncated": func(p string) error { return os.Truncate(p, 3) },
		"longer":    func(p string) error { return os.Truncate(p, 200) },
		"empty":     func(p string) error { return os.Truncate(p, 0) },
		"gone":      os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			data, h := image(100, 7)
			if err := put(t, holder(t, open(t, Config{Dir: dir}), "a"), h, data); err != nil {
				t.Fatal(err)
			}
			c := open(t, Config{Dir: dir})
			if err := damage(files(t, dir)[0]); err != nil {
				t.Fatal(err)
			}
			if name == "longer" { // the index knows how much of it to read, and the rest is nobody's
				if !has(t, holder(t, c, "a"), h, data) {
					t.Fatal("not found")
				}
				c = open(t, Config{Dir: dir})
			}
			mine := holder(t, c, "a")
			if has(t, mine, h, data) {
				t.Fatal("a damaged image was served")
			}
			if err := put(t, mine, h, data); err != nil {
				t.Fatal(err)
			}
			if !has(t, holder(t, open(t, Config{Dir: dir}), "a"), h, data) {
				t.Fatal("the image could not be replaced")
			}
			if f := c.Figures(); f.Images != 1 || f.Bytes != 100 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A tenant finds what it brought, and what others brought only where they share.
func TestTenants(t *testing.T) {
	for _, share := range []bool{false, true} {
		dir := t.TempDir()
		c := open(t, Config{Dir: dir, Share: share})
		data, name := image(100, 1)
		a, b := holder(t, c, "a"), holder(t, c, "b")
		if err := put(t, a, name, data); err != nil {
			t.Fatal(err)
		}
		for what, b := range map[string]*Holder{
			"in memory": b, "on the disk": holder(t, open(t, Config{Dir: dir, Share: share}), "b"),
		} {
			if got := has(t, b, name, data); got != share {
				t.Errorf("sharing %v, %s: %v", share, what, got)
			}
		}
		if err := put(t, b, name, data); err != nil {
			t.Fatal(err)
		}
		if !has(t, b, name, data) {
			t.Error("not found by who brought it")
		}
	}
}

func TestEvictsLeastRecentlyUsed(t *testing.T) {
	for _, again := range []bool{false, true} { // by the index, or by the times of the files
		dir := t.TempDir()
		c := open(t, Config{Dir: dir, Bytes: 2500})
		var names []Hash
		for i := range 3 {
			if i == 2 {
				if data, name := image(1000, 0); !has(t, holder(t, c, "a"), name, data) {
					t.Fatal("not there")
				}
				if again {
					paths := files(t, dir)
					for _, p := range paths {
						old := time.Now().Add(-time.Hour)
						if strings.HasSuffix(p, fmt.Sprintf("%x", names[1])[2:]) {
							old = old.Add(-time.Hour)
						}
						if err := os.Chtimes(p, old, old); err != nil {
							t.Fatal(err)
						}
					}
					c = open(t, Config{Dir: dir, Bytes: 2500})
				}
			}
			data, name := image(1000, i)
			if err := put(t, holder(t, c, "a"), name, data); err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
		if f := c.Figures(); f.Images != 2 || f.Bytes != 2000 || f.Evicted != 1 || len(files(t, dir)) != 2 {
			t.Errorf("%+v, %d files", f, len(files(t, dir)))
		}
		for i, want := range []bool{true, false, true} {
			data, _ := image(1000, i)
			if got := has(t, holder(t, c, "a"), names[i], data); got != want {
				t.Errorf("image %d kept: %v, want %v", i, got, want)
			}
		}
	}
}

// Who brings the most loses first, so that a tenant cannot push out what others have.
func TestFairEviction(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir(), Bytes: 10_000})
	for i := range 3 {
		data, name := image(1000, i)
		if err := put(t, holder(t, c, "small"), name, data); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		data, name := image(1000, 100+i)
		if err := put(t, holder(t, c, "greedy"), name, data); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		if data, name := image(1000, i); !has(t, holder(t, c, "small"), name, data) {
			t.Errorf("the small tenant has lost image %d", i)
		}
	}
	for i := range 20 { // a tenant that comes late gets its part
		data, name := image(1000, 200+i)
		if err := put(t, holder(t, c, "late"), name, data); err != nil {
			t.Fatal(err)
		}
	}
	f := c.Figures()
	if f.Tenants["small"] != 3000 || f.Tenants["greedy"] < 3000 || f.Tenants["late"] < 3000 || f.Bytes > 10_000 {
		t.Errorf("%+v", f)
	}
}

// Small images count for more than their bytes, so that their number is bounded too.
func TestBoundOfNumber(t *testing.T) {
	const images = 100
	dir := t.TempDir()
	c := open(t, Config{Dir: dir, Bytes: 1 << 20})
	c.most = images
	for i := range 3 * images {
		data, name := image(9, i)
		if err := put(t, holder(t, c, "a"), name, data); err != nil {
			t.Fatal(err)
		}
	}
	if f := c.Figures(); f.Images != images || len(files(t, dir)) != images {
		t.Errorf("%+v, %d files", f, len(files(t, dir)))
	}
}

type fullDisk struct{ *os.File }

func (fullDisk) WriteAt([]byte, int64) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}
}

func TestFullDisk(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	c := open(t, Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	c.create = func(dir string) (file, error) {
		f, err := os.CreateTemp(dir, tempPrefix+"*")
		return fullDisk{f}, err
	}
	h := holder(t, c, "a")
	for i := range 3 {
		data, name := image(100, i)
		if err := put(t, h, name, data); !errors.Is(err, ErrNotKept) {
			t.Fatalf("image %d: %v", i, err)
		}
	}
	if n := strings.Count(log.String(), "--cache-dir"); n != 1 {
		t.Errorf("%d warnings, want exactly one:\n%s", n, log.String())
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if f := c.Figures(); f.Refused != 3 || c.charged != 0 {
		t.Errorf("%+v, charged %d", f, c.charged)
	}
}

func TestFolderCannotBeMade(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := holder(t, open(t, Config{Dir: filepath.Join(blocked, "cache")}), "a")
	data, name := image(100, 1)
	if err := put(t, h, name, data); !errors.Is(err, ErrNotKept) {
		t.Fatal(err)
	}
	if has(t, h, name, data) {
		t.Fatal("found an image that was never stored")
	}
}

func TestTooLarge(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir(), Bytes: 1000})
	data, name := image(1001, 1)
	if err := put(t, holder(t, c, "a"), name, data); !errors.Is(err, ErrNotKept) {
		t.Error(err)
	}
	if f := c.Figures(); f.Refused != 1 || c.charged != 0 {
		t.Errorf("%+v", f)
	}
}

// Servers of before kept all images in one folder, whose tenants nobody knows.
func TestFolderOfBefore(t *testing.T) {
	dir := t.TempDir()
	data, name := image(100, 1)
	text := fmt.Sprintf("%x", name)
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(text[:2], text[2:]))
	write("notes")                                    // somebody else's
	write(filepath.Join("other", text[:2], text[2:])) // as well
	c := open(t, Config{Dir: dir})
	if has(t, holder(t, c, "a"), name, data) {
		t.Error("found what nobody brought")
	}
	if left := files(t, dir); len(left) != 2 {
		t.Errorf("%v", left)
	}
	if f := c.Figures(); f.Images != 0 {
		t.Errorf("%+v", f)
	}
}

// Figures are kept, not counted: the folder may be large.
func TestFiguresDoNotLook(t *testing.T) {
	dir := t.TempDir()
	c := open(t, Config{Dir: dir})
	data, name := image(100, 1)
	if err := put(t, holder(t, c, "a"), name, data); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if f := c.Figures(); f.Images != 1 || f.Bytes != 100 {
		t.Errorf("%+v", f)
	}
}
