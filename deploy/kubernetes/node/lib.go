package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const libPrefix = "lib-"

// ErrLibraries is wrapped by what is wrong with the client libraries that the image carries.
var ErrLibraries = errors.New("the client libraries")

// Install copies the client libraries from the image to the node, once for each version, and gives their folder there.
// Running containers use the folder of the version that they were started with.
func Install(from, data, version string) (string, error) {
	if version == "" || strings.ContainsAny(version, "/ ") {
		return "", fmt.Errorf("%w: %q is no version", ErrLibraries, version)
	}
	to := filepath.Join(data, libPrefix+version)
	if _, err := os.Stat(filepath.Join(to, "libscuda.so")); err == nil {
		return to, nil
	}
	if _, err := os.Stat(filepath.Join(from, "libscuda.so")); err != nil {
		return "", fmt.Errorf("%w: %w", ErrLibraries, err)
	}
	half, err := os.MkdirTemp(data, ".new-lib-*")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrLibraries, err)
	}
	defer os.RemoveAll(half) // after the renaming there is none
	if err := copyTree(half, from); err != nil {
		return "", fmt.Errorf("%w: %w", ErrLibraries, err)
	}
	if err := os.Chmod(half, 0o755); err != nil {
		return "", fmt.Errorf("%w: %w", ErrLibraries, err)
	}
	if err := os.Rename(half, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%w: %w", ErrLibraries, err)
	}
	return to, nil
}

// copyTree copies files and links.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil || name == "." {
			return err
		}
		target := filepath.Join(to, name)
		switch info, err := d.Info(); {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(target, 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, b, info.Mode().Perm()|0o444)
		}
	})
}

// Tidy removes libraries of other versions that no claim's device names, and what a plugin had begun to write when it
// was killed: no other one writes on this node.
func (p *Plugin) Tidy() error {
	for _, folder := range []string{p.Data, p.CDI} {
		half, _ := filepath.Glob(filepath.Join(folder, ".new-*")) // the pattern is none to complain about
		for _, path := range half {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	used := ""
	files, err := filepath.Glob(filepath.Join(p.CDI, cdiPrefix+"*.json"))
	for _, f := range files {
		b, e := os.ReadFile(f)
		err = errors.Join(err, e)
		used += string(b)
	}
	if err != nil {
		return err // then nobody knows what is used
	}
	old, err := filepath.Glob(filepath.Join(p.Data, libPrefix+"*"))
	for _, folder := range old {
		if folder != p.Lib && !strings.Contains(used, `"`+folder+`"`) {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}
	return err
}
