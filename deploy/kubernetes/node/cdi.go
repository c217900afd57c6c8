package node

import (
	"encoding/json"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

// Where containers see what is theirs.
const (
	insideLib   = "/opt/scuda"
	insideClaim = "/run/scuda"
)

// spec and what it consists of are the CDI's (Container Device Interface), as far as they are needed.
type spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []device `json:"devices"`
}

type device struct {
	Name  string `json:"name"`
	Edits edits  `json:"containerEdits"`
}

type edits struct {
	Env    []string `json:"env,omitempty"`
	Mounts []mount  `json:"mounts,omitempty"`
}

type mount struct {
	Host      string   `json:"hostPath"`
	Container string   `json:"containerPath"`
	Options   []string `json:"options,omitempty"`
}

const cdiVersion = "0.6.0" // container engines of 2023 read it

// deviceOf describes what the containers of a claim get. The libraries are preloaded by their paths, and the linker
// takes one that is loaded for every later wish for its name: so an image keeps its LD_LIBRARY_PATH, which CDI could
// only replace.
func deviceOf(claim types.UID, a *access, lib, folder string) *spec {
	env := []string{
		"SCUDA_SERVER=" + a.server,
		"SCUDA_TOKEN_FILE=" + insideClaim + "/" + names.KeyToken,
		"LD_PRELOAD=" + insideLib + "/libscuda.so:" + insideLib + "/libcuda.so.1:" + insideLib + "/libnvidia-ml.so.1",
	}
	if a.fingerprint != "" {
		env = append(env, "SCUDA_FINGERPRINT="+a.fingerprint)
	}
	if len(a.ca) > 0 {
		env = append(env, "SCUDA_CA="+insideClaim+"/"+names.KeyCA)
	}
	options := []string{"ro", "nosuid", "nodev", "bind"}
	return &spec{cdiVersion, names.CDIKind, []device{{string(claim), edits{env, []mount{
		{lib, insideLib, options}, {folder, insideClaim, append([]string{"noexec"}, options...)},
	}}}}}
}

// write puts bytes into a file, which is there as a whole or not at all.
func write(path string, b []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the renaming there is none
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

func writeSpec(path string, s *spec) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return write(path, append(text, '\n'), 0o644)
}
