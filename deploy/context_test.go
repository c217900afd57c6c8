package deploy

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestImageContext: .dockerignore lets everything through of which Go makes the program of the images. That an image
// builds at all is seen by make test-install alone, which takes long.
func TestImageContext(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	output := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(cmd, err)
		}
		return string(out)
	}
	held := map[string]bool{}
	for file := range strings.Lines(output("git", "ls-files", "-ci", "-X", ".dockerignore")) {
		held[strings.TrimSpace(file)] = true
	}
	if !held[".ci/run"] {
		t.Error(".dockerignore is not read")
	}
	list := json.NewDecoder(strings.NewReader(output("go", "list", "-deps", "-json=Dir,Standard,Module,GoFiles,CgoFiles,"+
		"CFiles,HFiles,SFiles,EmbedFiles", "./cmd/scuda")))
	looked := 0
	for {
		var p struct {
			Dir      string
			Standard bool
			Module   *struct{ Main bool }

			GoFiles, CgoFiles, CFiles, HFiles, SFiles, EmbedFiles []string
		}
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Standard || p.Module == nil || !p.Module.Main {
			continue
		}
		folder, err := filepath.Rel(root, p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, files := range [][]string{p.GoFiles, p.CgoFiles, p.CFiles, p.HFiles, p.SFiles, p.EmbedFiles} {
			for _, f := range files {
				if looked++; held[filepath.Join(folder, f)] {
					t.Errorf("%s is needed, and .dockerignore holds it back", filepath.Join(folder, f))
				}
			}
		}
	}
	if looked < 100 {
		t.Errorf("%d files were looked at", looked)
	}
}
