package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestReplace(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(folder, "file")
	for _, c := range []struct {
		text string
		mode fs.FileMode
	}{{"one", 0o600}, {"", 0o644}, {strings.Repeat("two", 1<<20), 0o640}} {
		if err := Replace(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.text {
			t.Errorf("%d bytes of %d (%v)", len(got), len(c.text), err)
		}
		if s, err := os.Stat(path); err != nil || s.Mode() != c.mode {
			t.Errorf("mode %v, wanted %v (%v)", s.Mode(), c.mode, err)
		}
	}
	if s, err := os.Stat(folder); err != nil || s.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v %v", s, err)
	}
	only(t, folder, "file")
}

func TestCreateOnce(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "key")
	var all sync.WaitGroup
	made := make(chan string, 8)
	for n := range cap(made) {
		all.Go(func() {
			text := fmt.Sprint("of ", n)
			switch err := Create(path, []byte(text), 0o600); {
			case err == nil:
				made <- text
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(made) != 1 {
		t.Fatalf("%d writers made it", len(made))
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != <-made {
		t.Errorf("%q (%v)", got, err)
	}
	only(t, folder, "key")
}

// What cannot be put in its place leaves nothing behind, and the old one as it was.
func TestFailure(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "taken")
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, put := range []func(string, []byte, fs.FileMode) error{Replace, Create} {
		if err := put(path, []byte("new"), 0o600); err == nil {
			t.Error("a folder was replaced by a file")
		}
		if err := put(filepath.Join(path, "x", "y\x00", "z"), nil, 0o600); err == nil {
			t.Error("a folder that cannot be")
		}
	}
	only(t, folder, "taken")
	only(t, path, "x")
}

func only(t *testing.T, folder, name string) {
	t.Helper()
	all, err := os.ReadDir(folder)
	if err != nil || len(all) != 1 || all[0].Name() != name {
		t.Errorf("in %s: %v (%v)", folder, all, err)
	}
}
