package session

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// MostSessions is how many servers a program may have at once: the number of one has four bits in a command's header.
const MostSessions = transport.MaxServers

// Sessions are a program's sessions, one with each of its servers. They share the command ring and its sender: each
// command names its server, and all together are one order (docs/decisions/0021-several-servers-in-one-program.md).
type Sessions struct {
	list []*Session // by number of the server, as commands name it
	send sender
	peers
}

// OpenAll opens a session with each server, all at the same time, and starts the engine. Errors are those of
// [transport.Dial]; then none is open. Where there are several, each of them has to know what a skipped command is, and
// to keep to a window of addresses.
func OpenAll(sh *Shared, servers ...Config) (*Sessions, error) {
	if len(servers) == 0 || len(servers) > MostSessions {
		return nil, fmt.Errorf("%d servers; a program can have 1 to %d", len(servers), MostSessions)
	}
	all := new(Sessions)
	all.peers.all = all
	if err := all.send.takeRing(sh); err != nil {
		return nil, err
	}
	all.send.mapped, all.send.upload = servers[0].Mapped, new(MappedUpload)
	opened, failed := make([]*Session, len(servers)), make([]error, len(servers))
	var dialed sync.WaitGroup
	for i, cfg := range servers {
		dialed.Go(func() { opened[i], failed[i] = open(cfg, &all.send, i, len(servers)) })
	}
	dialed.Wait()
	for i, s := range opened {
		if failed[i] == nil {
			all.list = append(all.list, s)
			all.send.outlets = append(all.send.outlets, &s.out)
		}
	}
	if err := errors.Join(failed...); err != nil {
		all.Close()
		return nil, err
	}
	all.list[0].start(all.send.run)
	for _, s := range all.list {
		s.begin()
	}
	for _, s := range all.list {
		if s.cfg.Transport != config.TransportRDMA {
			continue
		}
		if err := s.bulk.demandPath(); err != nil {
			all.Close()
			return nil, err
		}
	}
	return all, nil
}

// Of gives the session with a server.
func (all *Sessions) Of(server int) *Session { return all.list[server] }

// Servers is how many there are.
func (all *Sessions) Servers() int { return len(all.list) }

// OfThread gives the session that the thread's word of a command's header names, and the thread's number.
func (all *Sessions) OfThread(word uint32) (*Session, uint32) {
	return all.list[word>>serverShift], word & (1<<serverShift - 1)
}

// Send sends the ring up to end, of which the reply is waited for by a later Call.
func (all *Sessions) Send(end uint64) { all.send.flush(end) }

// Overlaps says whether an unfinished download or host function of any server's may still write there.
func (all *Sessions) Overlaps(p []byte) bool {
	return slices.ContainsFunc(all.list, func(s *Session) bool { return s.Overlaps(p) })
}

// Pin tells all of memory that stays mapped. See [Session.Pin].
func (all *Sessions) Pin(addr, bytes uint64) {
	for _, s := range all.list {
		s.Pin(addr, bytes)
	}
}

// Look sends what is pending and handles what has arrived from any server, without waiting.
func (all *Sessions) Look() {
	for _, s := range all.list {
		s.Look()
	}
}

// Close sends what is pending, within one second for all, and ends all sessions. See [Session.Close].
func (all *Sessions) Close() {
	deadline := time.Now().Add(closeTimeout)
	for _, s := range all.list {
		s.closeBy(deadline)
	}
}
