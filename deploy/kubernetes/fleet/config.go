package fleet

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"scuda.dev/scuda/transport/certificate"
)

// ErrConfig is wrapped by complaints about the file of servers.
var ErrConfig = errors.New("bad list of servers")

// Config is the file that names the servers.
type Config struct {
	Servers []Server `json:"servers"`
}

// Server says where a server is, and who may use it.
type Server struct {
	Name        string `json:"name"`                  // of the pool, a DNS name
	Address     string `json:"address"`               // HOST:PORT at which pods reach it
	Admin       string `json:"admin,omitempty"`       // how the controller asks it: HOST:PORT, "": Address; unix:/PATH
	AdminToken  string `json:"adminToken,omitempty"`  // file with the token of a tenant with role=admin; not for a socket
	Tenant      string `json:"tenant,omitempty"`      // in whose name leases are made; may be left out where there is one
	Fabric      string `json:"fabric,omitempty"`      // only nodes with the label scuda.dev/fabric=FABRIC reach it
	RDMA        bool   `json:"rdma,omitempty"`        // it offers RDMA to these
	Fingerprint string `json:"fingerprint,omitempty"` // of its certificate; "": the one that the server says it has
	CA          string `json:"ca,omitempty"`          // PEM: authorities of its certificate, instead of a fingerprint

	// Nodes says which nodes reach it where a fabric does not.
	Nodes *corev1.NodeSelector `json:"nodes,omitempty"`
}

// ReadConfig reads the file of servers.
func ReadConfig(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads the text of such a file.
func ParseConfig(text []byte) (*Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	seen := map[string]bool{}
	for i := range c.Servers {
		s := &c.Servers[i]
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("%w: server %d (%.60q): %w", ErrConfig, i+1, s.Name, err)
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("%w: %q stands there twice", ErrConfig, s.Name)
		}
		seen[s.Name] = true
	}
	return &c, nil
}

func (s *Server) check() error {
	if bad := validation.IsDNS1123Subdomain(s.Name); len(bad) > 0 {
		return fmt.Errorf("name: %s", bad[0])
	}
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("address: %.60q is not HOST:PORT, as pods reach the server", s.Address)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("address: %s is where a server listens; write how pods reach it", host)
	}
	if err := s.checkAdmin(); err != nil {
		return err
	}
	if s.Fabric != "" {
		if bad := validation.IsValidLabelValue(s.Fabric); len(bad) > 0 {
			return fmt.Errorf("fabric: %s", bad[0])
		}
		if s.Nodes != nil {
			return errors.New("fabric and nodes both say which nodes reach it; leave one out")
		}
	}
	if s.Fingerprint != "" {
		if _, err := certificate.ParseFingerprint(s.Fingerprint); err != nil {
			return err
		}
	}
	return nil
}

// checkAdmin looks at how the controller asks the server, and how both know each other.
func (s *Server) checkAdmin() error {
	if path, ok := s.socket(); ok {
		if !strings.HasPrefix(path, "/") || s.AdminToken != "" {
			return fmt.Errorf("admin: %.60q; write unix:/PATH, the server's admin socket, and no adminToken", s.Admin)
		}
		return nil
	}
	if s.Admin != "" {
		if host, port, err := net.SplitHostPort(s.Admin); err != nil || host == "" || port == "" {
			return fmt.Errorf("admin: %.60q is neither HOST:PORT nor unix:/PATH", s.Admin)
		}
	}
	switch {
	case s.AdminToken == "":
		return errors.New("adminToken: write the file with the token of a tenant that has role=admin on the server")
	case s.Fingerprint == "" && s.CA == "":
		return errors.New("fingerprint or ca: over a network the controller has to know the server; it prints its " +
			"fingerprint when it starts")
	}
	_, err := s.tls()
	return err
}

// socket is the path of the admin socket, where the server is asked over one.
func (s *Server) socket() (path string, ok bool) { return strings.CutPrefix(s.Admin, "unix:") }

// tls is how the controller knows the server.
func (s *Server) tls() (*tls.Config, error) {
	if s.Fingerprint != "" {
		fingerprint, err := certificate.ParseFingerprint(s.Fingerprint)
		if err != nil {
			return nil, err
		}
		return certificate.Pinned(fingerprint), nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(s.CA)) {
		return nil, errors.New("ca: there is no certificate (PEM) in it")
	}
	host, _, err := net.SplitHostPort(cmp.Or(s.Admin, s.Address))
	return certificate.Trusting(roots, host), err
}
