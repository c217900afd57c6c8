package server

import (
	"errors"
	"fmt"
	"io/fs"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/modcache"
)

// Module images stay with the supervisor: it alone opens files of the cache's folder. A worker asks for an image by its
// hash, or hands over one that its client has sent, and gets sealed memory. It sees what its session's tenant has
// brought.

// msgImage is a worker's imageInfo, with the image's memory where the worker brings one; and the supervisor's answer,
// an imageInfo with the memory to use.
const msgImage = "image"

type imageInfo struct {
	Request uint64
	Hash    []byte // of a request
	Put     bool   // the worker brings the image
	Failure int    // of an answer: one of the below
	Reason  string
}

// Failures.
const (
	imageFound   = iota // or kept
	imageMissing        // there is none for this session
	imageWrong          // it has another hash
	imageNotKept        // it stays the worker's
)

// openImages opens the cache that a configuration names; nil where there is none.
func openImages(cfg *Config) *modcache.Cache {
	dir := cfg.CacheDir
	switch dir {
	case "none":
		return nil
	case "":
		var err error
		if dir, err = modcache.DefaultDir(); err != nil {
			cfg.Log.Warn("images stay in memory", "error", err)
			return nil
		}
	}
	return modcache.Open(modcache.Config{Dir: dir, Bytes: cfg.CacheBytes, Share: cfg.ShareImages, Log: cfg.Log})
}

// serveImage carries out a worker's wish, in a goroutine of its own: files may be slow, and the worker's other messages
// are not to wait. A worker asks for one image at a time. It says whether the message was one.
func (p *process) serveImage(m *handoff.Message) bool {
	if m.Type != msgImage {
		return false
	}
	var info imageInfo
	err := m.Decode(&info)
	if err != nil || len(info.Hash) != len(modcache.Hash{}) || !p.asking.CompareAndSwap(false, true) {
		closeFD(m.FD)
		_ = p.line.Close() // no worker of ours says that: this one ends
		return true
	}
	go func() {
		fd, err := p.image(&info, m.FD)
		closeFD(m.FD)
		answer := imageInfo{Request: info.Request}
		if err != nil {
			answer.Failure, answer.Reason = imageNotKept, err.Error()
		}
		switch {
		case errors.Is(err, modcache.ErrHash):
			answer.Failure = imageWrong
		case errors.Is(err, fs.ErrNotExist):
			answer.Failure = imageMissing
		}
		p.asking.Store(false)
		_ = p.line.Send(msgImage, answer, fd) // a worker that is gone needs no answer
		closeFD(fd)
	}()
	return true
}

func (p *process) image(info *imageInfo, fd int) (int, error) {
	g := p.grant.Load()
	switch {
	case g == nil || g.images == nil:
		return -1, fs.ErrNotExist
	case info.Put:
		return g.images.Put(modcache.Hash(info.Hash), fd)
	}
	return g.images.Get(modcache.Hash(info.Hash))
}

// imageClient is the worker's side.
type imageClient struct {
	line *handoff.Conn
	requests
}

var _ executor.Images = (*imageClient)(nil)

// Get asks for an image.
func (c *imageClient) Get(h modcache.Hash) (*modcache.Image, error) { return c.request(h, false, -1) }

// Put hands an image over.
func (c *imageClient) Put(h modcache.Hash, img *modcache.Image) (*modcache.Image, error) {
	return c.request(h, true, img.FD())
}

func (c *imageClient) request(h modcache.Hash, put bool, fd int) (*modcache.Image, error) {
	m, err := c.ask(c.line, msgImage, fd, func(n uint64) any { return imageInfo{Request: n, Hash: h[:], Put: put} })
	if err != nil {
		return nil, err
	}
	var answer imageInfo
	if err := m.Decode(&answer); err != nil {
		closeFD(m.FD)
		return nil, err
	}
	switch answer.Failure {
	case imageFound:
		return modcache.OpenImage(m.FD)
	case imageMissing:
		err = fs.ErrNotExist
	case imageWrong:
		err = modcache.ErrHash
	default:
		err = modcache.ErrNotKept
	}
	closeFD(m.FD)
	return nil, fmt.Errorf("%w: %s", err, answer.Reason)
}
