// Package config finds what a client of scuda needs to know: its server, the token, and how to log.
//
// A server is the one of SCUDA_SERVER, else the first line of $XDG_CONFIG_HOME/scuda/host (~/.config/scuda/host) that is neither empty nor a
// comment (#), else there is none; SCUDA_SERVER set to nothing means none, too. A token is SCUDA_TOKEN, else the first line of the file SCUDA_TOKEN_FILE, else that of the file token
// beside host. SCUDA_LOG is LEVEL or LEVEL,file=PATH. The C front reads the same settings by the same rules (shim/front/base/common.c).
package config

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"scuda.dev/scuda/transport"
)

// maxFile bounds what is read of a settings file.
const maxFile = 64 << 10

// Errors of this package.
var (
	ErrFolder = errors.New("no configuration folder: neither XDG_CONFIG_HOME nor HOME is set")
	ErrToken  = errors.New("unusable token")
	ErrLog    = errors.New("bad log setting")
)

// FileError is a settings file that cannot be used.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return "settings file " + e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

func file(name string) (string, error) {
	folder := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(folder) { // the XDG specification wants relative ones ignored
		home := os.Getenv("HOME")
		if home == "" {
			return "", ErrFolder
		}
		folder = filepath.Join(home, ".config")
	}
	return filepath.Join(folder, "scuda", name), nil
}

// HostFile is the file that holds the server's address.
func HostFile() (string, error) { return file("host") }

// Server gives the configured server as HOST:PORT and what configured it, or two empty strings where nothing does.
func Server() (addr, source string, err error) {
	if value, set := os.LookupEnv("SCUDA_SERVER"); set {
		addr, source = strings.TrimSpace(value), "SCUDA_SERVER"
	} else if source, err = HostFile(); errors.Is(err, ErrFolder) {
		return "", "", nil
	} else if addr, err = line(source); err != nil {
		return "", "", err
	}
	if addr == "" {
		return "", "", nil
	}
	full, err := transport.ParseAddress(addr)
	if err != nil {
		return "", source, fmt.Errorf("%s: %w", source, err)
	}
	return full, source, nil
}

// SetServer makes addr the server of the host file. A program that reads the file meanwhile sees the old or the new one.
func SetServer(addr string) error {
	full, err := transport.ParseAddress(addr)
	if err != nil {
		return err
	}
	path, err := HostFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".host-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // nothing is left of it after the rename
	_, err = fmt.Fprintf(tmp, "# scuda's server; written by scuda HOST:PORT\n%s\n", full)
	if err := errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return &FileError{tmp.Name(), err}
	}
	return os.Rename(tmp.Name(), path)
}

// Token gives the token to present, nil where none is configured.
func Token() ([]byte, error) {
	text, source := os.Getenv("SCUDA_TOKEN"), "SCUDA_TOKEN"
	if text == "" {
		path := os.Getenv("SCUDA_TOKEN_FILE")
		named := path != ""
		if !named {
			var err error
			if path, err = file("token"); err != nil {
				return nil, nil //nolint:nilerr // no folder, no token
			}
		}
		var err error
		if text, err = line(path); err != nil {
			return nil, err
		}
		source = path
		if text == "" {
			if !named {
				return nil, nil
			}
			if _, err := os.Stat(path); err != nil {
				return nil, &FileError{path, err}
			}
			return nil, fmt.Errorf("%w: %s has no line with a token", ErrToken, path)
		}
	}
	if len(text) > transport.MaxToken {
		return nil, fmt.Errorf("%w: that of %s has %d bytes, the limit is %d", ErrToken, source, len(text), transport.MaxToken)
	}
	return []byte(text), nil
}

var comment = regexp.MustCompile(`(^|[ \t])#`)

// line gives the first line of a settings file that says something, "" where the file is not there or says nothing.
func line(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", &FileError{path, err}
	}
	defer f.Close()
	s := bufio.NewScanner(io.LimitReader(f, maxFile))
	for s.Scan() {
		text := s.Text()
		if i := comment.FindStringIndex(text); i != nil {
			text = text[:i[0]]
		}
		if text = strings.TrimSpace(text); text != "" {
			return text, nil
		}
	}
	if err := s.Err(); err != nil {
		return "", &FileError{path, err}
	}
	return "", nil
}

// ParseLog reads a log setting. The empty one means warnings on standard error.
func ParseLog(s string) (level slog.Level, path string, err error) {
	level = slog.LevelWarn
	for i, part := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		switch {
		case s == "":
		case ok && name == "file" && value != "":
			path = value
		case i == 0 && (part == "debug" || part == "info" || part == "warn" || part == "error"):
			if err := level.UnmarshalText([]byte(part)); err != nil {
				return level, "", fmt.Errorf("%w: %w", ErrLog, err)
			}
		default:
			return slog.LevelWarn, "", fmt.Errorf("%w: %q is none of debug, info, warn, error or file=PATH", ErrLog, part)
		}
	}
	return level, path, nil
}
