package executor

import (
	"errors"
	"io/fs"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/modcache"
)

// Images is what keeps module images beyond a session. Both methods may wait for another process. What they give is
// memory that nobody can change, and has the hash.
type Images interface {
	// Get gives an image that is kept for the session's tenant; fs.ErrNotExist: there is none.
	Get(modcache.Hash) (*modcache.Image, error)
	// Put keeps an image and gives what is to be used in its place. The error is [modcache.ErrHash] where the bytes have
	// another hash; after any other nobody has looked.
	Put(modcache.Hash, *modcache.Image) (*modcache.Image, error)
}

// maxImages bounds the bytes of images that a session has in memory.
const maxImages = 8 << 30

var errManyImages = errors.New("the session has all the images that it may have")

// imageDraft gives memory for an image that arrives. It counts as the session's own until something else keeps it.
func (m *modules) imageDraft(bytes uint64) (*modcache.Draft, error) {
	if bytes > maxImages-m.imageBytes || !m.host.take(bytes) {
		return nil, errManyImages
	}
	m.imageBytes += bytes
	d, err := modcache.NewDraft(int(bytes))
	if err != nil {
		m.dropDraft(bytes)
	}
	return d, err
}

func (m *modules) dropDraft(bytes uint64) {
	m.imageBytes -= bytes
	m.host.give(bytes)
}

// keepImage keeps a received image for the session and for later ones.
func (m *modules) keepImage(h modcache.Hash, d *modcache.Draft) cuda.CUresult {
	bytes := uint64(len(d.Data))
	if m.images[h] != nil {
		d.Close()
		m.dropDraft(bytes)
		return cuda.CUDA_SUCCESS
	}
	img, err := m.keep(h, d)
	if err != nil {
		m.dropDraft(bytes)
		m.log.Error("cannot keep a module image", "error", err)
		return cuda.CUDA_ERROR_INVALID_IMAGE
	}
	m.images[h] = img
	return cuda.CUDA_SUCCESS
}

func (m *modules) keep(h modcache.Hash, d *modcache.Draft) (*modcache.Image, error) {
	img, err := d.Image()
	if err != nil {
		return nil, err
	}
	defer img.Detach() // the mapping is enough
	if m.kept != nil {
		kept, err := m.kept.Put(h, img)
		if err == nil {
			m.host.give(uint64(len(img.Data)))
			img.Close()
			return kept, nil
		}
		if errors.Is(err, modcache.ErrHash) {
			img.Close()
			return nil, err
		}
		m.log.Debug("an image stays in the session's memory", "error", err)
	}
	if err := img.Verify(h); err != nil {
		img.Close()
		return nil, err
	}
	return img, nil
}

// image finds an image of this session or of earlier ones. Once found it stays with the session. A load of one that is
// not there is answered without a payload, which makes the client send it and ask again.
func (m *modules) image(h modcache.Hash) *modcache.Image {
	if img := m.images[h]; img != nil {
		return img
	}
	img, err := m.findImage(h)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("cannot get a module image; the client sends it", "error", err)
		}
		m.metrics.Add(metrics.ModuleMiss, 1)
		return nil
	}
	m.metrics.Add(metrics.ModuleHit, 1)
	m.images[h] = img
	m.imageBytes += uint64(len(img.Data))
	return img
}

func (m *modules) findImage(h modcache.Hash) (*modcache.Image, error) {
	if m.kept == nil {
		return nil, fs.ErrNotExist
	}
	img, err := m.kept.Get(h)
	if err == nil && uint64(len(img.Data)) > maxImages-m.imageBytes {
		img.Close()
		return nil, errManyImages
	}
	return img, err
}
