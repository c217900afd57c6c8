package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func access() *Access {
	return &Access{Server: "gpu1:14833", Libraries: "/opt/scuda/lib", TokenFile: "/etc/scuda/token",
		Fingerprint: "sha256:00"}
}

// The file has the shape that runtimes were seen to take.
func TestWrite(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "scuda.json")
	for range 2 { // the second replaces the first
		if err := Write(file, New(access().Device("all"))); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "cdiVersion": "0.6.0",
  "kind": "scuda.dev/gpu",
  "devices": [
    {
      "name": "all",
      "containerEdits": {
        "env": [
          "SCUDA_SERVER=gpu1:14833",
          "LD_PRELOAD=/usr/lib/scuda/libscuda.so",
          "SCUDA_FINGERPRINT=sha256:00",
          "SCUDA_TOKEN_FILE=/run/scuda/token"
        ],
        "mounts": [
          {
            "hostPath": "/opt/scuda/lib",
            "containerPath": "/usr/lib/scuda",
            "options": [
              "ro",
              "nosuid",
              "nodev",
              "bind"
            ]
          },
          {
            "hostPath": "/etc/scuda/token",
            "containerPath": "/run/scuda/token",
            "options": [
              "ro",
              "nosuid",
              "nodev",
              "bind"
            ]
          }
        ]
      }
    }
  ]
}
`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
	left, err := os.ReadDir(folder)
	st, err2 := os.Stat(file)
	if err != nil || err2 != nil || len(left) != 1 || st.Mode().Perm() != 0o644 {
		t.Error(left, st, err, err2)
	}
}

func TestCertificates(t *testing.T) {
	a := Access{Server: "gpu1:14833", Libraries: "/l", CA: "/c/ca.crt", Cert: "/c/me.crt", Key: "/c/me.key"}
	d := a.Device("all")
	want := []string{"SCUDA_SERVER=gpu1:14833", "LD_PRELOAD=/usr/lib/scuda/libscuda.so", "SCUDA_CA=/run/scuda/ca.crt",
		"SCUDA_CERT=/run/scuda/client.crt", "SCUDA_KEY=/run/scuda/client.key"}
	if diff := cmp.Diff(want, d.Edits.Env); diff != "" || len(d.Edits.Mounts) != 4 {
		t.Error(diff, d.Edits.Mounts)
	}
}

func TestCheck(t *testing.T) {
	good := func() *Spec { return New(access().Device("all"), access().Device("3f1e-7")) }
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Spec){
		"kind":        func(s *Spec) { s.Kind = "nvidia.com/gpu" },
		"version":     func(s *Spec) { s.Version = "" },
		"none":        func(s *Spec) { s.Devices = nil },
		"no name":     func(s *Spec) { s.Devices[0].Name = "" },
		"name":        func(s *Spec) { s.Devices[0].Name = "a/b" },
		"end of name": func(s *Spec) { s.Devices[0].Name = "a-" },
		"twice":       func(s *Spec) { s.Devices[1].Name = "all" },
		"variable":    func(s *Spec) { s.Devices[0].Edits.Env[0] = "=x" },
		"line":        func(s *Spec) { s.Devices[0].Edits.Env[0] = "A=x\nB=y" },
		"relative":    func(s *Spec) { s.Devices[0].Edits.Mounts[0].Host = "lib" },
		"same place":  func(s *Spec) { s.Devices[0].Edits.Mounts[1].Container = Libraries },
	} {
		s := good()
		spoil(s)
		if err := s.Check(); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v", name, err)
		}
		file := filepath.Join(t.TempDir(), "x.json")
		if err := Write(file, s); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	text, err := Append(nil, New(access().Device("all")))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"devices":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrSpec) {
				t.Fatal(err)
			}
			return
		}
		text, err := Append(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if diff := cmp.Diff(s, again); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	})
}
