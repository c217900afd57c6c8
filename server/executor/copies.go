package executor

import "time"

// copies moves bytes between the client and the GPU. It has five parts, each of which builds on those before it:
//
//   - staging is the page-locked memory through which copies go (staging.go).
//   - transfers are the bytes of big copies on their connections (bulk.go).
//   - path is the session's RDMA: its link, and slots of its own (path.go, direct_unsafe.go).
//   - uploads bring bytes to the GPU (upload.go, bulkuploads.go).
//   - downloads bring them to the client (download.go, late.go).
//
// Copies of two and three dimensions are in copy3d.go. What captures copies is the graphs' own (capture.go).
//
// Locks: all of it belongs to the executor's thread, but for this. transfers.mu guards which connections there are.
// Chunks under way belong to transfers.in and transfers.out, which have locks of their own. lateDownloads.mu guards
// asynchronous downloads, since the reader of the callback connection sends them as well. path.openMu guards whether
// RDMA is opened; the goroutine that opens it hands the rest of path over by path.there. slot.free is atomic: whoever
// has sent a slot's bytes stores it. lateDownloads.mu or transfers.mu are taken before locks of package bulk and of
// RDMA's link, and these before output.mu. No call of the driver is made while one is held.
type copies struct {
	*base

	staging   staging
	bulk      *transfers
	path      path
	uploads   uploads
	downloads downloads
	callback  *callbackConn
}

// copiesLoop is what it asks of the loop.
type copiesLoop interface {
	napAfter(quiet time.Duration) error  // lets a moment pass; the error says that the session is over
	clientFailed(what string, err error) // ends the session; from any thread
	expect(bytes bool)                   // says whether the client has to send bytes before anything goes on
}

// begin prepares it where it lies, since its parts know each other's addresses.
func (cs *copies) begin(s *Session, cfg Config) {
	cs.base, cs.callback = &s.base, s.callback
	cs.bulk = newTransfers(s, cfg.Metrics)
	cs.staging = staging{base: &s.base, loop: s}
	cs.path.base, cs.path.bulk, cs.path.staging = &s.base, cs.bulk, &cs.staging
	cs.path.loop, cs.path.count, cs.path.device, cs.path.wish = s, min(cfg.RDMASlots, MaxRDMASlots), cfg.RDMADevice,
		cfg.GPUDirect
	cs.uploads = uploads{
		base: &s.base, loop: s, in: &s.in, callback: s.callback, graphs: &s.graphs, modules: &s.modules,
		hostmem: &s.hostmem,
		staging: &cs.staging, bulk: cs.bulk, path: &cs.path,
	}
	d := &cs.downloads
	d.base, d.loop, d.out, d.graphs, d.hostmem, d.printf = &s.base, s, &s.out, &s.graphs, &s.hostmem, &s.printf
	d.staging, d.bulk, d.path = &cs.staging, cs.bulk, &cs.path
	s.callback.flushed = d.flush
}

// pending says whether anything has to be looked at between commands.
func (cs *copies) pending() bool {
	d := &cs.downloads
	return d.underWay > 0 || len(d.endings) > 0 || len(cs.path.busy) > 0 ||
		cs.path.link() != nil && cs.path.direct != nil && cs.bulk.out.Pieces() > 0 ||
		cs.callback.flush.Load() != d.late.flushed.Load()
}

// stop ends what is on its way. Any thread may call it.
func (cs *copies) stop() { cs.bulk.fail(errCallbackClosed) }

// close ends the connections, once those who use them have seen the end.
func (cs *copies) close() {
	cs.path.close()
	cs.bulk.close()
}

// free unmaps memory.
func (cs *copies) free() {
	if cs.path.mem != nil {
		unmapMemory(cs.path.mem)
	}
}
