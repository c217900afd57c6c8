package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/tenant"
)

// Nobody is the tenant of workers that serve no session: the one that shows what the machine has where nobody can say
// who comes first, and the one that metrics are read with.
const nobody = ""

// Reasons why a means of isolation is missing.
var (
	errNotRoot = errors.New("the server is not root and has no spawner")
	errNoTrial = errors.New("it has no trial; --isolation require or auto applies it")
	errOff     = errors.New("switched off")
)

// places says where workers run: as which user, in what folder, with what limits.
type places struct {
	starter spawner.Starter
	close   func() error
	users   *tenant.Numbers // nil: workers have one user
	given   isolation.Report
	enclose bool
}

// openPlaces decides how workers are started, where there is no service for it.
func (s *supervisor) openPlaces(service *spawner.Remote) (*places, error) {
	cfg := &s.cfg
	p := &places{}
	if err := p.open(service, cfg); err != nil {
		return nil, err
	}
	facts, err := p.starter.Facts()
	if err == nil && !facts.UIDs.Empty() {
		p.users, err = tenant.OpenNumbers(cfg.StateDir, facts.UIDs.First, facts.UIDs.Last, s.log)
	}
	if err == nil {
		err = p.judge(cfg, facts)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// open opens a spawner: the service's, a child's where the server is root, else the server itself.
func (p *places) open(service *spawner.Remote, cfg *Config) error {
	workers := cfg.Workers
	workers.LogLevel, workers.LogJSON = logLevel(cfg.Log), cfg.LogFormat == config.LogJSON
	for _, library := range []string{cfg.Library, cfg.NCCL} {
		if filepath.IsAbs(library) {
			workers.Read = append(workers.Read, filepath.Dir(library))
		}
	}
	switch {
	case service != nil:
		p.starter, p.close = service, service.Close
	case !workers.UIDs.Empty() && os.Geteuid() == 0:
		remote, err := spawner.Launch(workers)
		if err != nil {
			return err
		}
		p.starter, p.close = remote, remote.Close
	default:
		workers.UIDs = spawner.Range{}
		if cfg.Isolation != isolation.Off { // workers are of the same user, who is not to look into the server
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // never fails
		}
		local, err := spawner.NewLocal(workers, cfg.Log)
		if err != nil {
			return err
		}
		p.starter, p.close = local, local.Close
	}
	return nil
}

// judge says what workers are given before they are started.
func (p *places) judge(cfg *Config, facts spawner.Facts) error {
	note := p.given.Note
	switch {
	case cfg.Isolation == isolation.Off:
		note(isolation.FileAccess, errOff)
	case cfg.Isolation == isolation.Log:
		note(isolation.FileAccess, errNoTrial)
	case facts.Files != "":
		note(isolation.FileAccess, errors.New(facts.Files))
	default:
		note(isolation.FileAccess, nil)
		p.enclose = true
	}
	switch {
	case p.users != nil:
		note(isolation.Users, nil)
	case !cfg.SameUser:
		note(isolation.Users, errNotRoot)
	}
	switch {
	case facts.Limits == "":
		note(isolation.Limits, nil)
	case facts.Limits != spawner.ByWish:
		note(isolation.Limits, errors.New(facts.Limits))
	}
	return p.given.Check(cfg.Isolation)
}

// start starts a worker of a tenant's that writes its log to a pipe, whose other end is the caller's.
func (p *places) start(of, mode string, profile isolation.Profile, line *os.File) (*spawner.Worker, *os.File, error) {
	o := spawner.Order{Tenant: spawner.KeyOf(of), Profile: profile, Enclosed: p.enclose && mode != modeMPS}
	if p.users != nil {
		var err error
		if o.UID, err = p.users.Of(of); err != nil {
			return nil, nil, err
		}
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("pipe for a worker's log: %w", err)
	}
	w, err := p.starter.Start(o, line, to)
	to.Close()
	if err != nil {
		from.Close()
		return nil, nil, err
	}
	return w, from, nil
}

// say tells the operator what is missing, a line for each means.
func (s *supervisor) say(r isolation.Report) {
	s.log.Info("isolation of workers", "given", r.Given, "missing", len(r.Missing), "profile",
		s.profile(modeCUDA, nobody).String())
	for _, m := range r.Missing {
		level := s.log.Warn
		if s.cfg.Isolation == isolation.Off {
			level = s.log.Info // it is so on purpose
		}
		level("workers are without "+m.Means, "reason", m.Reason, "remedy", m.Remedy())
	}
}
