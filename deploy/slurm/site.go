package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

// ErrSite is wrapped by complaints about the site's file.
var ErrSite = errors.New("the file of the site")

// Site is what a site decides, once for all its machines: slurm.yaml.
type Site struct {
	Cluster     string            `yaml:"cluster"` // "": what Slurm calls it
	Servers     []Server          `yaml:"servers"` // in the order in which they are asked
	Licence     string            `yaml:"licence"` // which Slurm counts GPUs by
	Tenant      string            `yaml:"tenant"`  // in whose name jobs run; %u: the user
	Memory      string            `yaml:"memory-per-gpu"`
	Share       uint32            `yaml:"share"`
	Class       string            `yaml:"class"`
	Partitions  []string          `yaml:"partitions"` // whose jobs may have GPUs; none: all
	Grace       Duration          `yaml:"grace"`
	Longest     Duration          `yaml:"longest"`
	Timeout     Duration          `yaml:"timeout"`
	Bind        string            `yaml:"bind"`
	Mode        string            `yaml:"mode"`
	Folder      string            `yaml:"folder"`
	Libraries   string            `yaml:"libraries"`   // "": where scuda finds them
	Scuda       string            `yaml:"scuda"`       // "": this program
	Squeue      string            `yaml:"squeue"`      // Slurm's program
	Environment map[string]string `yaml:"environment"` // of scuda lease: who asks
}

// Server is one that gives leases.
type Server struct {
	Address     string `yaml:"address"`     // HOST:PORT, for programs
	Places      int    `yaml:"places"`      // GPUs that jobs may have at once
	Admin       string `yaml:"admin"`       // its socket, if it runs on this machine
	Fingerprint string `yaml:"fingerprint"` // of its certificate
	CA          string `yaml:"ca"`          // file with authorities, instead
}

// Words of the file.
const (
	ModeNode       = "node"       // the node's prolog takes the lease
	ModeController = "controller" // burst_buffer.lua does, on the controller
	BindRank       = "rank"       // each task of a node has GPUs of its own
	BindNone       = "none"
)

// Bounds of the file.
const (
	maxSite    = 64 << 10
	maxServers = 64
	maxPlaces  = 4096
	maxCluster = 40
	mostTime   = 366 * 24 * time.Hour // of a lease
)

// Duration is a time as Go writes it, such as 90s or 72h.
type Duration time.Duration

// UnmarshalYAML reads one.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v <= 0 {
		return fmt.Errorf("line %d: %.40q is no time; write 30s, 5m or 72h", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// ReadSite reads the file, which may be changed by nobody but root and its owner: it says what is run.
func ReadSite(path string) (*Site, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; an example comes with scuda: slurm.yaml", ErrSite, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, err)
	}
	if st.Mode()&0o022 != 0 {
		return nil, fmt.Errorf("%w: others may write to %s; chmod go-w it", ErrSite, path)
	}
	if owner := st.Sys().(*syscall.Stat_t).Uid; os.Geteuid() == 0 && owner != 0 {
		return nil, fmt.Errorf("%w: %s belongs to user %d; chown root it", ErrSite, path, owner)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSite+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, err)
	}
	s, err := ParseSite(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.Scuda == "" {
		if s.Scuda, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("%w: scuda: %w", ErrSite, err)
		}
	}
	return s, nil
}

// ParseSite reads its text.
func ParseSite(text []byte) (*Site, error) {
	if len(text) > maxSite {
		return nil, fmt.Errorf("%w has more than %d bytes", ErrSite, maxSite)
	}
	s := &Site{Licence: "scuda", Tenant: "slurm-%u", Grace: Duration(10 * time.Minute),
		Longest: Duration(7 * 24 * time.Hour), Timeout: Duration(30 * time.Second), Bind: BindRank, Mode: ModeNode,
		Folder: "/run/scuda-slurm", Squeue: "squeue"}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(s); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %w", ErrSite, err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSite, err)
	}
	return s, nil
}

var (
	isWord     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	isTenant   = regexp.MustCompile(`^([A-Za-z0-9_.-]|%u)+$`)
	isVariable = regexp.MustCompile(`^SCUDA_[A-Z_]+$`)
	isSize     = regexp.MustCompile(`^[1-9][0-9]*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?$`)
)

func (s *Site) check() error {
	switch {
	case s.Cluster != "" && (!isWord.MatchString(s.Cluster) || len(s.Cluster) > maxCluster):
		return fmt.Errorf("cluster: %.60q; write letters, digits and _ . -, %d at most", s.Cluster, maxCluster)
	case len(s.Servers) == 0 || len(s.Servers) > maxServers:
		return fmt.Errorf("servers: there are %d; name 1 to %d", len(s.Servers), maxServers)
	case !isWord.MatchString(s.Licence):
		return fmt.Errorf("licence: %.60q is no name of a licence", s.Licence)
	case !isTenant.MatchString(s.Tenant):
		return fmt.Errorf("tenant: %.60q; write letters, digits and _ . -, and %%u for the user", s.Tenant)
	case s.Memory != "" && !isSize.MatchString(s.Memory):
		return fmt.Errorf("memory-per-gpu: %.60q is no size; write 20GiB", s.Memory)
	case s.Class != "" && !slices.Contains([]string{"low", "normal", "high"}, s.Class):
		return fmt.Errorf("class: %.60q; write low, normal or high", s.Class)
	case s.Bind != BindRank && s.Bind != BindNone:
		return fmt.Errorf("bind: %.60q; write %s or %s", s.Bind, BindRank, BindNone)
	case s.Mode != ModeNode && s.Mode != ModeController:
		return fmt.Errorf("mode: %.60q; write %s or %s", s.Mode, ModeNode, ModeController)
	case time.Duration(s.Longest) > mostTime-time.Duration(s.Grace):
		return fmt.Errorf("longest and grace: a lease lasts 366 days at most")
	case !filepath.IsAbs(s.Folder), s.Libraries != "" && !filepath.IsAbs(s.Libraries):
		return errors.New("folder and libraries are absolute paths")
	}
	for name, value := range s.Environment {
		if !isVariable.MatchString(name) || strings.ContainsAny(value, "\x00\n") {
			return fmt.Errorf("environment: %.60q is no setting of scuda's (SCUDA_…)", name)
		}
	}
	for i := range s.Servers {
		v := &s.Servers[i]
		if err := v.check(); err != nil {
			return fmt.Errorf("server %d (%.60q): %w", i+1, v.Address, err)
		}
		if slices.ContainsFunc(s.Servers[:i], func(o Server) bool { return o.Address == v.Address }) {
			return fmt.Errorf("server %d: %.60q stands there twice", i+1, v.Address)
		}
	}
	return nil
}

func (v *Server) check() error {
	host, port, err := net.SplitHostPort(v.Address)
	switch {
	case err != nil || host == "" || port == "" || strings.ContainsAny(v.Address, " \t\n\x00"):
		return errors.New("address: write HOST:PORT")
	case v.Places < 1 || v.Places > maxPlaces:
		return fmt.Errorf("places: %d; say how many GPUs jobs may have there at once, 1 to %d", v.Places, maxPlaces)
	case v.Admin != "" && !filepath.IsAbs(v.Admin), v.CA != "" && !filepath.IsAbs(v.CA):
		return errors.New("admin and ca are absolute paths")
	case v.Fingerprint != "" && !strings.HasPrefix(v.Fingerprint, "sha256:"),
		strings.ContainsAny(v.Fingerprint+v.CA+v.Admin, "\n\x00"):
		return errors.New("fingerprint: write sha256:…, as the server's log says it")
	}
	return nil
}
