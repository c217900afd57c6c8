package tenant

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport/certificate"
)

// Files are what the registry reads.
type Files struct {
	Token   func() ([]byte, error) // of the token file; nil: there is none
	Tenants string                 // "": none
	// For TLS; "" everywhere: none.
	Certificate, Key string
	ClientCA         string // authorities of clients' certificates; "": none are asked for
}

// Registry knows the tenants, and how the server shakes hands. It may be asked by many at once.
type Registry struct {
	files Files
	fixed bool // there are no files
	now   atomic.Pointer[snapshot]
	loads sync.Mutex // held while files are read
}

// snapshot is what the files said.
type snapshot struct {
	list    List
	anyName bool // every certificate of the authority's is a tenant's
	open    bool // nothing is asked for
	tls     *tls.Config
}

// Read reads the files.
func Read(files Files) (*Registry, error) {
	r := &Registry{files: files}
	s, err := r.read()
	if err != nil {
		return nil, err
	}
	r.now.Store(s)
	return r, nil
}

// Static is a registry of one token, or with nil one that asks for nothing. The server shakes hands as cfg says.
func Static(token []byte, cfg *tls.Config) *Registry {
	s := &snapshot{list: newList(), open: token == nil, tls: cfg}
	if token != nil {
		s.list.names[byToken(token)] = Default
	}
	r := &Registry{fixed: true}
	r.now.Store(s)
	return r
}

func (r *Registry) read() (*snapshot, error) {
	s := &snapshot{list: newList()}
	f := &r.files
	if f.Tenants != "" {
		text, err := os.ReadFile(f.Tenants)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFile, err)
		}
		if s.list, err = Parse(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Tenants, err)
		}
	}
	if f.Token != nil {
		token, err := f.Token()
		if err != nil {
			return nil, err
		}
		if other, taken := s.list.names[byToken(token)]; taken {
			return nil, fmt.Errorf("%w: %s has the token of the token file", ErrFile, other)
		}
		s.list.names[byToken(token)] = Default
	}
	s.anyName = f.ClientCA != "" && f.Tenants == ""
	s.open = f.Token == nil && f.Tenants == "" && f.ClientCA == ""
	if f.Certificate == "" {
		return s, nil
	}
	own, err := certificate.Load(f.Certificate, f.Key)
	if err != nil {
		return nil, err
	}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}}
	if f.ClientCA != "" {
		if s.tls.ClientCAs, err = certificate.Pool(f.ClientCA); err != nil {
			return nil, err
		}
		s.tls.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return s, nil
}

// Reload reads the files again. If they cannot be used, everything stays as it was.
func (r *Registry) Reload() error {
	r.loads.Lock()
	defer r.loads.Unlock()
	if r.fixed {
		return nil
	}
	s, err := r.read()
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	if before := r.now.Load(); (before.tls == nil) != (s.tls == nil) {
		return errors.New("TLS cannot be switched while the server runs")
	}
	r.now.Store(s)
	return nil
}

// TLS is how the server shakes hands now; nil: not at all.
func (r *Registry) TLS() *tls.Config { return r.now.Load().tls }

// Admit says whose connection it is, by the token that it presents and by what the TLS handshake showed (nil: none was
// made).
func (r *Registry) Admit(token []byte, state *tls.ConnectionState) (Identity, bool) {
	return r.now.Load().admit(token, state)
}

// Holds says whether an identity that was admitted would be still.
func (r *Registry) Holds(who Identity) bool {
	s := r.now.Load()
	if s.open {
		return true
	}
	name, ok := s.name(who.key)
	return ok && name == who.Name
}

// Administers says whether an identity would be admitted still, and as an administrator. No certificate and no token
// is one without a line of the tenants file.
func (r *Registry) Administers(who Identity) bool {
	s := r.now.Load()
	name, ok := s.name(who.key)
	return ok && name == who.Name && s.list.admins[name]
}

// Limits are those of a tenant: its own, and else those that are given.
func (r *Registry) Limits(name string, usual config.Limits) config.Limits {
	for _, l := range r.now.Load().list.limits[name] {
		_ = l.of.Set(&usual, l.value) // it was read before
	}
	return usual
}

// Profile is what a tenant's sessions may do: its own, and else what is given.
func (r *Registry) Profile(name string, usual isolation.Profile) isolation.Profile {
	if p, ok := r.now.Load().list.profiles[name]; ok {
		return p
	}
	return usual
}

// Terms are those of a tenant's sessions that have no lease.
func (r *Registry) Terms(name string) lease.Terms {
	if t, ok := r.now.Load().list.terms[name]; ok {
		return t
	}
	return lease.Usual()
}

// Sole is the only name that a client can have; "": there are several, or nobody knows.
func (r *Registry) Sole() (name string) {
	s := r.now.Load()
	switch {
	case s.open:
		return Anyone
	case s.anyName:
		return ""
	}
	for _, n := range s.list.names {
		if name != "" && n != name {
			return ""
		}
		name = n
	}
	return name
}

// Open says whether nothing is asked for.
func (r *Registry) Open() bool { return r.now.Load().open }

// Fingerprint is that of the server's certificate, "" where it has none.
func (r *Registry) Fingerprint() string {
	s := r.now.Load()
	if s.tls == nil || len(s.tls.Certificates) == 0 || s.tls.Certificates[0].Leaf == nil {
		return ""
	}
	return certificate.Fingerprint(s.tls.Certificates[0].Leaf)
}
