// Package cdi writes files of the Container Device Interface, by which Docker, Podman, containerd and CRI-O give a
// container what it needs for GPUs elsewhere: the client's libraries, the server's address, and what shows who asks.
//
// scuda cdi calls it for a static file, and Kubernetes' plugin for one of each claim. It owns nothing but the file that
// it writes.
package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Kind is what devices are called by: docker run --device scuda.dev/gpu=NAME.
const Kind = "scuda.dev/gpu"

// version of the interface: the first by which names may begin with a digit, as UIDs do, is 0.5.0.
const version = "0.6.0"

// Where a container finds what is mounted.
const (
	Libraries = "/usr/lib/scuda"
	secrets   = "/run/scuda/"
)

// ErrSpec is wrapped by complaints about what no runtime would take.
var ErrSpec = errors.New("not a CDI device")

// Spec is what a file has.
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []Device `json:"devices"`
}

// Device is what a container can ask for by its name.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits are what the runtime changes of the container. A variable replaces the image's own of the same name.
type Edits struct {
	Env    []string `json:"env,omitempty"`
	Mounts []Mount  `json:"mounts,omitempty"`
}

// Mount is a file or a folder of the host's.
type Mount struct {
	Host      string   `json:"hostPath"`
	Container string   `json:"containerPath"`
	Options   []string `json:"options,omitempty"`
}

// Access says how a container gets at GPUs. Files are the host's, by absolute names; they are mounted, so what is in
// them stands in no environment and in no CDI file.
type Access struct {
	Server      string // HOST:PORT
	Libraries   string // the folder of the client's libraries
	TokenFile   string // "": no token
	Fingerprint string // of the server's certificate, "": it is not pinned
	CA          string // file with authorities, "": none
	Cert, Key   string // files of the client's certificate, "": none
}

// Device gives the device with a name.
func (a *Access) Device(name string) Device {
	d := Device{Name: name, Edits: Edits{
		// LD_PRELOAD alone: the image's LD_LIBRARY_PATH would be replaced. What is preloaded brings both libraries.
		Env:    []string{"SCUDA_SERVER=" + a.Server, "LD_PRELOAD=" + Libraries + "/libscuda.so"},
		Mounts: []Mount{bind(a.Libraries, Libraries)},
	}}
	if a.Fingerprint != "" {
		d.Edits.Env = append(d.Edits.Env, "SCUDA_FINGERPRINT="+a.Fingerprint)
	}
	for _, f := range []struct{ variable, host, name string }{
		{"SCUDA_TOKEN_FILE", a.TokenFile, "token"}, {"SCUDA_CA", a.CA, "ca.crt"},
		{"SCUDA_CERT", a.Cert, "client.crt"}, {"SCUDA_KEY", a.Key, "client.key"},
	} {
		if f.host != "" {
			d.Edits.Env = append(d.Edits.Env, f.variable+"="+secrets+f.name)
			d.Edits.Mounts = append(d.Edits.Mounts, bind(f.host, secrets+f.name))
		}
	}
	return d
}

func bind(host, container string) Mount {
	return Mount{host, container, []string{"ro", "nosuid", "nodev", "bind"}}
}

// New gives what a file with these devices has.
func New(devices ...Device) *Spec { return &Spec{version, Kind, devices} }

var (
	isName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$`)
	isVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

const longestName = 128

// Check says what is wrong with it.
func (s *Spec) Check() error {
	if s.Version != version || s.Kind != Kind || len(s.Devices) == 0 {
		return fmt.Errorf("%w: version %.40q, kind %.40q, %d devices", ErrSpec, s.Version, s.Kind, len(s.Devices))
	}
	var names []string
	for i := range s.Devices {
		d := &s.Devices[i]
		switch {
		case !isName.MatchString(d.Name) || len(d.Name) > longestName:
			return fmt.Errorf("%w: a device's name has letters, digits and _ . : - between them, not %.130q", ErrSpec, d.Name)
		case slices.Contains(names, d.Name):
			return fmt.Errorf("%w: there are two devices %q", ErrSpec, d.Name)
		}
		names = append(names, d.Name)
		for _, e := range d.Edits.Env {
			if !isVariable.MatchString(e) || strings.ContainsAny(e, "\x00\n") {
				return fmt.Errorf("%w: %q: not a variable: %.80q", ErrSpec, d.Name, e)
			}
		}
		var at []string
		for _, m := range d.Edits.Mounts {
			for _, p := range []string{m.Host, m.Container} {
				if !path.IsAbs(p) || strings.ContainsAny(p, "\x00\n") {
					return fmt.Errorf("%w: %q: %.200q is not an absolute path", ErrSpec, d.Name, p)
				}
			}
			if slices.Contains(at, m.Container) {
				return fmt.Errorf("%w: %q: two mounts at %s", ErrSpec, d.Name, m.Container)
			}
			at = append(at, m.Container)
		}
	}
	return nil
}

// Append appends the file's text.
func Append(b []byte, s *Spec) ([]byte, error) {
	if err := s.Check(); err != nil {
		return b, err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return b, err
	}
	return append(append(b, text...), '\n'), nil
}

// maxFile is how long a file may be, in bytes.
const maxFile = 1 << 20

// Parse reads what [Append] wrote.
func Parse(b []byte) (*Spec, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%w: a file of %d bytes; the limit is %d", ErrSpec, len(b), maxFile)
	}
	var s Spec
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return &s, s.Check()
}

// Write writes a file, all of it or nothing: runtimes watch the folder. They read it as root, and nothing in it is
// secret.
func Write(file string, s *Spec) error {
	text, err := Append(nil, s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".scuda-*") // runtimes read *.json and *.yaml
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // where it has its name, there is none of the old one
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
