package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/sim/board"
	"scuda.dev/scuda/transport"
)

// spawnerPatience is how long a server waits for the spawner of a service of its own.
const spawnerPatience = 20 * time.Second

// house is what the server has that outlives it, where the spawner is a service of its own: that keeps it for the next
// supervisor. Clients that come meanwhile wait in the backlog of the listening socket.
type house struct {
	listener *net.TCPListener
	board    *os.File        // of the simulated machine
	spawner  *spawner.Remote // nil: none of its own
	workers  []spawner.Kept  // of the supervisor before, until they are adopted
	kept     []*os.File
}

// openHouse opens what the server needs before all else, or takes it over.
func openHouse(ctx, stop context.Context, cfg *Config) (h *house, err error) {
	h = &house{listener: cfg.Listener}
	addr := ""
	if h.listener == nil {
		if err := CheckAddress(cfg.Addr, !cfg.Tenants.Open(), cfg.Insecure); err != nil {
			return nil, err
		}
		if addr, err = transport.ParseAddress(cfg.Addr); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			h.close()
			if h.spawner != nil {
				_ = h.spawner.Close() // the error before it counts
			}
		}
	}()
	if cfg.Spawner != "" {
		if h.spawner, err = spawner.Listen(stop, cfg.Spawner, spawnerPatience, cfg.Log); err != nil {
			return h, err
		}
		h.takeOver(addr)
	}
	if h.listener == nil {
		if h.listener, err = transport.Listen(ctx, addr); err != nil {
			return h, listenError(addr, err)
		}
	}
	cfg.Listener = h.listener
	if h.board == nil {
		if _, h.board, err = board.New(); err != nil {
			return h, err
		}
	}
	if h.spawner == nil {
		return h, nil
	}
	socket, err := h.listener.File()
	if err != nil {
		return h, fmt.Errorf("keep the listening socket: %w", err)
	}
	h.kept = []*os.File{socket, h.board}
	return h, h.spawner.KeepHouse(h.kept)
}

// takeOver takes what the supervisor before had; its socket only if it listens at addr.
func (h *house) takeOver(addr string) {
	var files []*os.File
	h.workers, files = h.spawner.TakeOver()
	if len(files) == 0 {
		return
	}
	h.board = files[1]
	defer files[0].Close()
	l, err := net.FileListener(files[0])
	if err != nil {
		return // another one will do
	}
	if tcp, ok := l.(*net.TCPListener); ok && h.listener == nil && listensAt(tcp.Addr(), addr) {
		h.listener = tcp
		return
	}
	l.Close()
}

// listensAt says whether a socket is where the server is to listen. Port 0 is any.
func listensAt(at net.Addr, addr string) bool {
	is, ok := at.(*net.TCPAddr)
	want, err := net.ResolveTCPAddr("tcp", addr)
	if !ok || err != nil {
		return false
	}
	every := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return (want.Port == 0 || want.Port == is.Port) && (want.IP.Equal(is.IP) || every(want.IP) && every(is.IP))
}

// bye says that no supervisor comes after this one, which has no session any more.
func (h *house) bye() {
	if h.spawner != nil {
		h.spawner.Bye()
	}
}

// close lets go of all that nobody keeps. A server that ends otherwise than by request leaves it to the next one.
func (h *house) close() {
	for i := range h.workers {
		for _, f := range h.workers[i].Files {
			f.Close()
		}
	}
	if h.listener != nil {
		h.listener.Close()
	}
	if h.board != nil {
		h.board.Close()
	}
	if len(h.kept) > 0 {
		h.kept[0].Close()
	}
}
