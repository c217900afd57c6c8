package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

// frozen is image memory, as a worker has it.
func frozen(t *testing.T, data []byte) *modcache.Image {
	t.Helper()
	d, err := modcache.NewDraft(len(data))
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Data, data)
	img, err := d.Image()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(img.Close)
	return img
}

// keepImage puts an image into a folder.
func keepImage(t *testing.T, folder, tenant string, data []byte) {
	t.Helper()
	c := modcache.Open(modcache.Config{Dir: folder})
	defer c.Close()
	h := c.Holder(tenant)
	defer h.Close()
	fd, err := h.Put(sha256.Sum256(data), frozen(t, data).FD())
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

// imageWorker is a worker's side of the cache, with the supervisor's process at the other end of its line.
func imageWorker(t *testing.T, c *modcache.Cache, tenant string) (*imageClient, *process) {
	t.Helper()
	ours, theirs, err := handoff.Pair()
	if err != nil {
		t.Fatal(err)
	}
	line, err := handoff.FromFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	client, p := &imageClient{line: line}, &process{line: ours, exited: make(chan struct{})}
	mine := c.Holder(tenant)
	p.grant.Store(&grant{tenant, mine})
	var both sync.WaitGroup
	both.Go(func() {
		p.listen(newShelf())
		close(p.exited)
	})
	both.Go(func() {
		for {
			m, err := line.Receive()
			if err != nil {
				return
			}
			if err := client.answered(m); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		line.Close()
		ours.Close()
		both.Wait()
		mine.Close()
	})
	return client, p
}

func TestImagesOfWorkers(t *testing.T) {
	c := modcache.Open(modcache.Config{Dir: t.TempDir()})
	t.Cleanup(c.Close)
	alice, _ := imageWorker(t, c, "alice")
	again, _ := imageWorker(t, c, "alice")
	bob, _ := imageWorker(t, c, "bob")
	data := bytes.Repeat([]byte("image"), 1000)
	name := sha256.Sum256(data)
	if _, err := alice.Get(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	if _, err := alice.Put(modcache.Hash{1}, frozen(t, data)); !errors.Is(err, modcache.ErrHash) {
		t.Errorf("under the hash of another: %v", err)
	}
	detached := frozen(t, data)
	detached.Detach()
	if _, err := alice.Put(name, detached); !errors.Is(err, modcache.ErrHash) {
		t.Errorf("without its memory: %v", err)
	}
	kept, err := alice.Put(name, frozen(t, data))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	found, err := again.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	if !bytes.Equal(kept.Data, data) || !bytes.Equal(found.Data, data) {
		t.Error("another image")
	}
	if _, err := bob.Get(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another tenant's: %v", err)
	}
}

// A worker that says what none of ours says is ended, and its supervisor goes on.
func TestImageRequestsThatNobodyMakes(t *testing.T) {
	c := modcache.Open(modcache.Config{Dir: t.TempDir()})
	t.Cleanup(c.Close)
	busy := func(p *process) { p.asking.Store(true) }
	for name, x := range map[string]struct {
		body   any
		before func(*process)
	}{
		"a short hash":     {imageInfo{Request: 1, Hash: []byte{1, 2}}, nil},
		"no hash":          {imageInfo{Request: 1, Put: true}, nil},
		"another thing":    {[]int{1}, nil},
		"a second request": {imageInfo{Request: 2, Hash: make([]byte, sha256.Size)}, busy},
	} {
		t.Run(name, func(t *testing.T) {
			client, p := imageWorker(t, c, "a")
			if x.before != nil {
				x.before(p)
			}
			if err := client.line.Send(msgImage, x.body, -1); err != nil {
				t.Fatal(err)
			}
			<-p.exited
		})
	}
}

// bring sends an image and says what came of it; load asks for a module of it by its hash.
func (l *link) bring(image []byte) int32 {
	l.t.Helper()
	put := wire.ModulePut{Hash: sha256.Sum256(image), Bytes: uint64(len(image))}
	payload := binary.LittleEndian.AppendUint64(bytes.Clone(wire.Bytes(&put)), put.Bytes)
	size := uint32(transport.CommandHeaderSize + len(payload))
	b := transport.FrameHeader{Len: size}.Append(nil)
	b = transport.CommandHeader{
		Size: size, Op: wire.OpModulePut, Flags: transport.FlagAnswer | transport.FlagBulk, Seq: l.seq, Context: 1 << 36,
	}.Append(b)
	l.seq += uint64(size)
	b = append(append(b, payload...), image...)
	if _, err := l.conn.Write(append(b, make([]byte, transport.Pad(len(image))-len(image))...)); err != nil {
		l.t.Fatal(err)
	}
	for {
		h, _, err := l.message()
		if err != nil {
			l.t.Fatal(err)
		}
		if h.Type == transport.MsgReply {
			return h.Result
		}
	}
}

func (l *link) load(image []byte) int32 {
	l.t.Helper()
	load := wire.ModuleLoad{Module: 1<<36 + 64, Hash: sha256.Sum256(image)}
	r, _, err := l.call(wire.OpModuleLoad, 1<<36, wire.Bytes(&load))
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// A tenant's hash loads nothing that another has brought, unless the operator lets tenants share.
func TestImagesOfTenants(t *testing.T) {
	const found, missing = 0, 500
	image, err := os.ReadFile("../testdata/kernels/kernels.ptx")
	if err != nil {
		t.Fatal(err)
	}
	image = append(image, 0)
	for _, share := range []bool{false, true} {
		folder := t.TempDir()
		list := filepath.Join(folder, "tenants")
		if err := os.WriteFile(list, []byte("alice token=alice-token\nbob token=bobs-token"), 0o600); err != nil {
			t.Fatal(err)
		}
		tenants, err := tenant.Read(tenant.Files{Tenants: list})
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, func(c *Config) {
			c.Tenants, c.CacheDir, c.ShareImages = tenants, filepath.Join(folder, "cache"), share
		})
		of := func(token string) *link {
			s.token = []byte(token)
			l := s.open(transport.KindCUDA)
			l.use(8)
			return l
		}
		first := of("alice-token")
		if r := first.load(image); r != missing {
			t.Errorf("before anybody brought it: %d", r)
		}
		if r := first.bring(image); r != 0 {
			t.Fatalf("cannot bring it: %d", r)
		}
		want := map[bool]int32{false: missing, true: found}[share]
		for token, want := range map[string]int32{"alice-token": found, "bobs-token": want} {
			if r := of(token).load(image); r != want {
				t.Errorf("%s, sharing %v: %d, want %d", token, share, r, want)
			}
		}
	}
}
