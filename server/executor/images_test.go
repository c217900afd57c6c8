package executor

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/transport"
)

// An image is sent once; that it is missing is told without a payload.
func TestImageIsSentOnce(t *testing.T) {
	cache := modcache.Open(modcache.Config{Dir: t.TempDir()})
	defer cache.Close()
	image := kernels(t)
	open := func() *client {
		mine := cache.Holder("a")
		t.Cleanup(mine.Close)
		return connect(t, func(cfg *Config) { cfg.Images = kept{mine} })
	}
	load := func(c *client) (cuda.CUresult, []byte) {
		return c.call(wire.OpModuleLoad, wire.Bytes(&wire.ModuleLoad{Module: c.newHandle(), Hash: hashOf(image)}))
	}
	c := open()
	if r, reply := load(c); r != cuda.CUDA_ERROR_NOT_FOUND || len(reply) != 0 {
		t.Errorf("before: %v with %d bytes", r, len(reply))
	}
	c.putImage(image)
	for _, c := range []*client{c, open()} { // the second is another session
		if r, reply := load(c); r != cuda.CUDA_SUCCESS || len(reply) == 0 {
			t.Errorf("afterwards: %v with %d bytes", r, len(reply))
		}
	}
}

// kept is a cache in the session's own process.
type kept struct{ *modcache.Holder }

func (k kept) Get(h modcache.Hash) (*modcache.Image, error) { return opened(k.Holder.Get(h)) }

func (k kept) Put(h modcache.Hash, img *modcache.Image) (*modcache.Image, error) {
	return opened(k.Holder.Put(h, img.FD()))
}

func opened(fd int, err error) (*modcache.Image, error) {
	if err != nil {
		return nil, err
	}
	return modcache.OpenImage(fd)
}

// An image under the hash of another is refused, whether there is a cache or not.
func TestImagesThatAreRefused(t *testing.T) {
	cache := modcache.Open(modcache.Config{Dir: t.TempDir()})
	defer cache.Close()
	for name, images := range map[string]Images{"with a cache": kept{cache.Holder("a")}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, func(cfg *Config) { cfg.Images = images })
			image := kernels(t)
			p := wire.ModulePut{Hash: hashOf([]byte("another")), Bytes: uint64(len(image))}
			send := func() cuda.CUresult {
				payload := append(bytes.Clone(wire.Bytes(&p)), words(p.Bytes)...)
				return cuda.CUresult(c.await(c.start(0, wire.OpModulePut, transport.FlagBulk, payload, image)).Result)
			}
			if r := send(); r != cuda.CUDA_ERROR_INVALID_IMAGE {
				t.Errorf("under the hash of another: %v", r)
			}
			p.Hash = hashOf(image)
			if r := send(); r != cuda.CUDA_SUCCESS {
				t.Errorf("under its own: %v", r)
			}
		})
	}
}

// The images of a session are bounded, wherever they come from.
func TestManyImages(t *testing.T) {
	image := kernels(t)
	cache := modcache.Open(modcache.Config{Dir: t.TempDir()})
	defer cache.Close()
	mine := cache.Holder("a")
	defer mine.Close()
	room := uint64(len(image))
	m := modules{kept: kept{mine}, images: make(map[modcache.Hash]*modcache.Image), imageBytes: maxImages - room}
	m.base = &base{log: slog.New(slog.DiscardHandler), metrics: new(metrics.Page)}
	if _, err := m.imageDraft(room + 1); !errors.Is(err, errManyImages) {
		t.Errorf("one byte too many: %v", err)
	}
	d, err := m.imageDraft(room)
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Data, image)
	if r := m.keepImage(hashOf(image), d); r != cuda.CUDA_SUCCESS {
		t.Fatal(r)
	}
	m.images[hashOf(image)].Close()
	clear(m.images)
	if m.image(hashOf(image)) != nil {
		t.Error("more images than a session may have came from the cache")
	}
	m.imageBytes -= room
	if img := m.image(hashOf(image)); img == nil || m.imageBytes != maxImages {
		t.Errorf("%v, %d bytes", img, m.imageBytes)
	} else {
		img.Close()
	}
}
