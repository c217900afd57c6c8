// Package config finds a client's settings: its server, the token, and where the log goes.
//
//	SCUDA_SERVER                  host:port; set but empty means none
//	$XDG_CONFIG_HOME/scuda/host   (~/.config/scuda/host) its first line that is not a comment; see [SetServer]
//	SCUDA_TOKEN, SCUDA_TOKEN_FILE the token itself, or the file that holds it
//	$XDG_CONFIG_HOME/scuda/token
//	SCUDA_LOG                     debug, info, warn or error, then optionally ",file=PATH"
//
// The C front reads the same settings by itself (shim/front), to decide whether it needs a core at all; keep the two alike.
package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"scuda.dev/scuda/transport"
)

// Names of the environment variables.
const (
	EnvServer    = "SCUDA_SERVER"
	EnvToken     = "SCUDA_TOKEN"
	EnvTokenFile = "SCUDA_TOKEN_FILE"
	EnvLog       = "SCUDA_LOG"
)

// ErrSetting is wrapped by every error about a setting that cannot be used.
var ErrSetting = errors.New("unusable setting")

// SettingError is a setting that cannot be used: where it stands, what is wrong, and what helps.
type SettingError struct {
	Source string
	Detail string
	Err    error
}

func (e *SettingError) Error() string { return e.Source + ": " + e.Detail }

func (e *SettingError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrSetting}
	}
	return []error{ErrSetting, e.Err}
}

// maxFile bounds the files read here.
const maxFile = 64 << 10

// Server gives the configured server as host:port, and where that stands. No server is configured when addr is empty.
func Server() (addr, source string, err error) {
	if v, ok := os.LookupEnv(EnvServer); ok {
		if v = strings.TrimSpace(v); v == "" {
			return "", EnvServer, nil
		}
		return complete(v, EnvServer)
	}
	path, err := HostFile()
	if err != nil {
		return "", "", nil // no home folder: nothing is configured
	}
	b, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", path, &SettingError{Source: path, Detail: err.Error() + "; correct the file's permissions, or remember a server with 'scuda HOST:PORT'", Err: err}
	}
	line, err := ParseHost(bytes.NewReader(b))
	if err != nil {
		return "", path, &SettingError{Source: path, Detail: err.Error(), Err: err}
	}
	if line == "" {
		return "", path, nil
	}
	return complete(line, path)
}

func complete(v, source string) (string, string, error) {
	addr, err := transport.ParseAddress(v)
	if err != nil {
		return "", source, &SettingError{Source: source, Detail: err.Error(), Err: err}
	}
	return addr, source, nil
}

// ParseHost gives the first line that holds more than a comment ("#" to the end of the line).
func ParseHost(r io.Reader) (string, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line != "" {
			return line, nil
		}
	}
	return "", lines.Err()
}

// folder is where this user's settings lie.
func folder() (string, error) {
	if d := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "scuda"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".config", "scuda"), nil
}

// HostFile is the path of the file that remembers the server.
func HostFile() (string, error) {
	d, err := folder()
	if err != nil {
		return "", fmt.Errorf("no place for settings: %w; set HOME or XDG_CONFIG_HOME", err)
	}
	return filepath.Join(d, "host"), nil
}

// SetServer remembers a server in the host file, which it replaces as a whole.
func SetServer(addr string) error {
	full, err := transport.ParseAddress(addr)
	if err != nil {
		return err
	}
	path, err := HostFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".host-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintf(f, "# The scuda server of this user; SCUDA_SERVER overrides it.\n%s\n", full)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// Token gives the token to show to the server, nil where there is none.
func Token() ([]byte, error) {
	if v := os.Getenv(EnvToken); v != "" {
		return checkToken([]byte(v), EnvToken)
	}
	if path := os.Getenv(EnvTokenFile); path != "" {
		t, err := ReadToken(path)
		if err != nil {
			return nil, &SettingError{Source: EnvTokenFile, Detail: err.Error(), Err: err}
		}
		return t, nil
	}
	d, err := folder()
	if err != nil {
		return nil, nil
	}
	t, err := ReadToken(filepath.Join(d, "token"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return t, err
}

// ReadToken reads a token file; white space at its ends does not count.
func ReadToken(path string) ([]byte, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return checkToken(bytes.TrimSpace(b), path)
}

func checkToken(t []byte, source string) ([]byte, error) {
	switch {
	case len(t) == 0:
		return nil, &SettingError{Source: source, Detail: "the token is empty; write the server's token into it"}
	case len(t) > transport.MaxToken:
		return nil, &SettingError{Source: source, Detail: fmt.Sprintf("the token has %d bytes, the limit is %d", len(t), transport.MaxToken)}
	}
	return t, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// ParseLog reads a value of SCUDA_LOG: a level and optionally a file. Empty means warnings and errors to stderr.
func ParseLog(s string) (level slog.Level, file string, err error) {
	bad := func(detail string) (slog.Level, string, error) {
		return slog.LevelWarn, "", &SettingError{Source: EnvLog, Detail: detail + "; write debug, info, warn or error, then optionally ,file=PATH"}
	}
	level = slog.LevelWarn
	name, rest, more := strings.Cut(s, ",")
	if path, ok := strings.CutPrefix(name, "file="); ok && path != "" { // only a file
		name, rest, more = "", s, true
	}
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "", "warn", "warning":
	case "error":
		level = slog.LevelError
	default:
		return bad(fmt.Sprintf("unknown level %q", name))
	}
	if more {
		path, ok := strings.CutPrefix(rest, "file=")
		if !ok || path == "" {
			return bad(fmt.Sprintf("%q is no file=PATH", rest))
		}
		file = path
	}
	return level, file, nil
}

// Logger makes the logger that SCUDA_LOG asks for. A setting that cannot be used is reported on stderr and does not stop anything.
func Logger() *slog.Logger {
	level, file, err := ParseLog(os.Getenv(EnvLog))
	var out io.Writer = os.Stderr
	if file != "" {
		f, ferr := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if ferr != nil {
			err = &SettingError{Source: EnvLog, Detail: ferr.Error() + "; logging to stderr", Err: ferr}
		} else {
			out = f // stays open as long as the process
		}
	}
	log := NewLogger(out, level)
	if err != nil {
		log.Warn(err.Error())
	}
	return log
}

// NewLogger makes a logger with the form that all of scuda's programs use.
func NewLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})).With("app", "scuda")
}
