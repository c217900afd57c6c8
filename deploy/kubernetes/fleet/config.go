package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"scuda.dev/scuda/server/admin"
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
	Admin       string `json:"admin"`                 // how the controller asks it: unix:/PATH of its admin socket
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
	if path, ok := strings.CutPrefix(s.Admin, "unix:"); !ok || !strings.HasPrefix(path, "/") {
		return fmt.Errorf("admin: %.60q; write unix:/PATH, the server's admin socket", s.Admin)
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

// Admin is what is asked of a server.
type Admin interface {
	Status(context.Context) (*admin.Status, error)
	Leases(context.Context) ([]admin.Lease, error)
	Grant(context.Context, *admin.LeaseRequest) (*admin.Granted, error)
	Revoke(ctx context.Context, id, reason string) error
}

// Dial says how a server is asked. The connection is made when it is needed.
func Dial(s *Server) Admin { return socket(strings.TrimPrefix(s.Admin, "unix:")) }

// socket is a server whose admin socket this machine has.
type socket string

// ask has one question answered.
func ask[T any](ctx context.Context, path socket, question func(*admin.Client) (T, error)) (answer T, err error) {
	c, err := admin.Dial(ctx, string(path))
	if err != nil {
		return answer, err
	}
	defer c.Close()
	return question(c)
}

// Status, Leases, Grant and Revoke are [Admin]'s.
func (p socket) Status(ctx context.Context) (*admin.Status, error) {
	return ask(ctx, p, func(c *admin.Client) (*admin.Status, error) { return c.Status(ctx) })
}

// Leases is described at Status.
func (p socket) Leases(ctx context.Context) ([]admin.Lease, error) {
	return ask(ctx, p, func(c *admin.Client) ([]admin.Lease, error) { return c.Leases(ctx) })
}

// Grant is described at Status.
func (p socket) Grant(ctx context.Context, r *admin.LeaseRequest) (*admin.Granted, error) {
	return ask(ctx, p, func(c *admin.Client) (*admin.Granted, error) { return c.Grant(ctx, r) })
}

// Revoke is described at Status.
func (p socket) Revoke(ctx context.Context, id, reason string) error {
	_, err := ask(ctx, p, func(c *admin.Client) (struct{}, error) { return struct{}{}, c.Revoke(ctx, id, reason) })
	return err
}
