package session

import (
	"fmt"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// MostSessions is how many servers a program may have at once: the number of one has four bits in a command's header.
const MostSessions = 1 << (32 - serverShift)

// Sessions are a program's sessions, one with each of its servers. They share the command ring and its sender: each
// command names its server, and all together are one order (docs/decisions/0021-several-servers-in-one-program.md).
type Sessions struct {
	list []*Session // by number of the server, as commands name it
	send sender
}

// OpenAll opens a session with each server, in this order, and starts the engine. Errors are those of [transport.Dial];
// then none is open. Where there are several, each of them has to know what a skipped command is.
func OpenAll(sh *Shared, servers ...Config) (*Sessions, error) {
	if len(servers) == 0 || len(servers) > MostSessions {
		return nil, fmt.Errorf("%d servers; a program can have 1 to %d", len(servers), MostSessions)
	}
	all := new(Sessions)
	if err := all.send.takeRing(sh); err != nil {
		return nil, err
	}
	var required []string
	if len(servers) > 1 {
		required = []string{transport.CapSkip}
	}
	for _, cfg := range servers {
		last := &sh.Lost
		if len(servers) > 1 {
			last = new(uint32)
		}
		s, err := open(cfg, &all.send, last, required...)
		if err != nil {
			all.Close()
			return nil, err
		}
		all.list = append(all.list, s)
		all.send.outlets = append(all.send.outlets, &s.out)
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

// Close sends what is pending and ends all sessions. See [Session.Close].
func (all *Sessions) Close() {
	for _, s := range all.list {
		s.Close()
	}
}
