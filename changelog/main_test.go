package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestFormat(t *testing.T) {
	releases, err := read(fstest.MapFS{
		"main.go":                     file("package main"),
		"TEMPLATE":                    file("Added: what is new"),
		"0.9.0_2026-12-01/a.md":       file("Fixed: A copy of no bytes\n\nIt hung."),
		"0.10.0_2026-12-24/a.md":      file("Added: Copies\n\nThey work.\n\nMostly.\n"),
		"unreleased/launch.md":        file("Fixed: A launch\n\nIt\nfailed.\n"),
		"unreleased/encryption.md":    file("Security: Encryption\n\nThere is some.\n"),
		"unreleased/zz-encryption.md": file("Security: More encryption\n\nThere is more.\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := head + `
## Unreleased

### Security

- **Encryption.**
  There is some.
- **More encryption.**
  There is more.

### Fixed

- **A launch.**
  It
  failed.

## 0.10.0 (2026-12-24)

### Added

- **Copies.**
  They work.

  Mostly.

## 0.9.0 (2026-12-01)

### Fixed

- **A copy of no bytes.**
  It hung.
`
	if got := format(releases); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestWrongNotes(t *testing.T) {
	for name, files := range map[string]fstest.MapFS{
		"no kind":        {"unreleased/a.md": file("Copies work\n\nThey do.")},
		"unknown kind":   {"unreleased/a.md": file("New: Copies work\n\nThey do.")},
		"no subject":     {"unreleased/a.md": file("Added: \n\nThey do.")},
		"full stop":      {"unreleased/a.md": file("Added: Copies work.\n\nThey do.")},
		"long subject":   {"unreleased/a.md": file("Added: " + strings.Repeat("x", maxSubject) + "\n\nThey do.")},
		"no empty line":  {"unreleased/a.md": file("Added: Copies work\nThey do.")},
		"no text":        {"unreleased/a.md": file("Added: Copies work\n\n")},
		"other file":     {"unreleased/a.txt": file("Added: Copies work\n\nThey do.")},
		"unknown folder": {"1.0/a.md": file("Added: Copies work\n\nThey do.")},
	} {
		if _, err := read(files); !errors.Is(err, ErrNote) {
			t.Errorf("%s: %v, want an error about the note", name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "changelog", "unreleased")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "a.md"), []byte("Added: Copies work\n\nThey do.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(root, true); err == nil {
		t.Error("a missing CHANGELOG.md passed the check")
	}
	if err := run(root, false); err != nil {
		t.Error(err)
	}
	if err := run(root, true); err != nil {
		t.Errorf("what was written does not pass the check: %v", err)
	}
}

// TestTemplate: what people copy is a note.
func TestTemplate(t *testing.T) {
	text, err := os.ReadFile("TEMPLATE")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse("TEMPLATE", string(text)); err != nil {
		t.Error(err)
	}
}
