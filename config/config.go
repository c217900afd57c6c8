// Package config reads scuda's settings: where a client finds its server, which token it shows, how big copies
// travel, how to log.
//
// Each setting has one reader here, which the Go core, scuda-connect, the command line and the server's options use.
// Settings lists them all.
//
// A server is the one of SCUDA_SERVER, else the first line of $XDG_CONFIG_HOME/scuda/host (~/.config/scuda/host) that
// is neither empty nor a comment (#), else there is none; SCUDA_SERVER set to nothing means none, too. A relative
// XDG_CONFIG_HOME is not looked at. Blanks around a value do not count. A host file that cannot be opened is none;
// one that cannot be read, or is longer than 64 KiB before its first line ends, is an error. Both may say the name of a
// remembered server (the file servers beside host, which scuda login writes), and both may say several servers, with
// commas between them. A token is SCUDA_TOKEN, or the server's element of it where that is a list ([ofServer]), else
// the first such line of the file SCUDA_TOKEN_FILE, else the one that is remembered for the server, else that of the
// file token beside host.
//
// The C fronts decide by themselves whether a server is configured, since they must know it before anything is
// loaded, and read SCUDA_LOG, since they log before (shim/front/base/common.c). They and this package are tested with
// the same tables, those of package configtest.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"scuda.dev/scuda/transport"
)

// maxFile bounds what is read of a settings file.
const maxFile = 64 << 10

// Errors of this package.
var (
	ErrFolder    = errors.New("no configuration folder: neither XDG_CONFIG_HOME nor HOME is set")
	ErrNoServer  = errors.New("no server is configured: run scuda login HOST:PORT once, or set SCUDA_SERVER=HOST:PORT")
	ErrLong      = errors.New("its first line does not end within 64 KiB")
	ErrToken     = errors.New("unusable token")
	ErrLog       = errors.New("bad log setting")
	ErrTransport = errors.New("bad transport")
	ErrQueue     = errors.New("bad time to wait")
	ErrSize      = errors.New("bad size")
	ErrMetrics   = errors.New("bad address for metrics")
)

// FileError is a settings file that cannot be used.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return "settings file " + e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// blanks are what does not count around a value.
const blanks = " \t\r\n\v\f"

// file gives the path of a file of the user's. The path is put together as the C front does it: nothing is cleaned.
func file(name string) (string, error) {
	folder := os.Getenv("XDG_CONFIG_HOME")
	if !strings.HasPrefix(folder, "/") { // the XDG specification wants relative ones ignored
		home := os.Getenv("HOME")
		if home == "" {
			return "", ErrFolder
		}
		folder = home + "/.config"
	}
	return folder + "/scuda/" + name, nil
}

// TokenFile is the file with the token for servers for which none is remembered.
func TokenFile() (string, error) { return file("token") }

// HostFile is the file that holds the server's address.
func HostFile() (string, error) { return file("host") }

// SetServers makes those the servers of the host file. A program that reads the file meanwhile sees the old or the new
// ones.
func SetServers(servers ...string) error {
	full, err := List(Join(servers))
	if err != nil {
		return err
	}
	path, err := HostFile()
	if err != nil {
		return err
	}
	what := "server"
	if len(full) > 1 {
		what = "servers"
	}
	return replace(path, fmt.Sprintf("# scuda's %s; written by scuda login and scuda use\n%s\n", what, Join(full)), 0o644)
}

// Target gives the configured server and the credentials to present to it. Without a server it is [ErrNoServer], with
// several [ErrSeveral].
func Target() (to transport.Target, err error) {
	to.Address, _, err = Server()
	if err == nil && to.Address == "" {
		err = ErrNoServer
	}
	if err != nil {
		return to, err
	}
	return To(to.Address, "")
}

// TargetOf gives one of the configured servers by its number, from 0 on, and how many there are.
func TargetOf(number int) (to transport.Target, servers int, err error) {
	list, _, err := Configured()
	switch {
	case err != nil:
		return to, 0, err
	case len(list) == 0:
		return to, 0, ErrNoServer
	case number < 0 || number >= len(list):
		return to, len(list), fmt.Errorf("%w: there is no server %d; the settings have changed", ErrList, number)
	}
	to, err = To(list[number], "")
	return to, len(list), err
}

// To is the server at an address, with the credentials to present: the token of a file that somebody named, else the
// configured one.
func To(address, tokenFile string) (transport.Target, error) { return Told(address, tokenFile, "") }

// Told is [To], where somebody has told the fingerprint of the server's certificate. It counts where nothing else says
// how to know the server: no setting, and no meeting before. "" is nothing.
func Told(address, tokenFile, fingerprint string) (transport.Target, error) {
	to := transport.Target{Address: address}
	list, err := readServers()
	if err != nil {
		return to, err
	}
	s := saved(list, address)
	if tokenFile != "" {
		to.Token, err = ReadToken(tokenFile)
		to.TokenOf = tokenFile
	} else {
		to.Token, to.TokenOf, err = token(address, s)
	}
	if err != nil {
		return to, err
	}
	if other := holder(list, to.Token); other != nil && other.Address != address {
		to.TokenOf += ", which is that of the server " + other.Name
	}
	to.TLS, err = clientTLS(address, s, fingerprint)
	return to, err
}

// Candidate is a server that is not remembered yet, with the credentials that it will be remembered with.
func Candidate(s *Saved) (transport.Target, error) {
	cfg, err := clientTLS(s.Address, s, "")
	return transport.Target{Address: s.Address, Token: s.Token, TokenOf: "scuda login", TLS: cfg}, err
}

// Token gives the token to present to the server at an address and what says it, nil where none is configured.
func Token(address string) (text []byte, source string, err error) {
	list, err := readServers()
	if err != nil {
		return nil, "", err
	}
	return token(address, saved(list, address))
}

func token(address string, s *Saved) (text []byte, source string, err error) {
	if text, err := ofServer("SCUDA_TOKEN", address); err != nil {
		return nil, "", fmt.Errorf("%w; a token with a comma in it goes into SCUDA_TOKEN_FILE", err)
	} else if text != "" {
		source = "SCUDA_TOKEN"
		if strings.Contains(text, ",") {
			source += ", which is one token, as one server is set,"
		}
		b, err := CheckToken(text, "SCUDA_TOKEN")
		return b, source, err
	}
	if path := os.Getenv("SCUDA_TOKEN_FILE"); path != "" {
		b, err := ReadToken(path)
		return b, "SCUDA_TOKEN_FILE, " + path, err
	}
	if s.Token != nil {
		return s.Token, "scuda login", nil
	}
	path, err := TokenFile()
	if err != nil {
		return nil, "", nil //nolint:nilerr // no folder, no token
	}
	first, err := line(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && first == "" {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	b, err := CheckToken(first, path)
	return b, path, err
}

// holder is the one of the remembered servers that a token is for, nil where there is none.
func holder(list []Saved, token []byte) *Saved {
	if token == nil {
		return nil
	}
	for i := range list {
		if transport.SameToken(list[i].Token, token) {
			return &list[i]
		}
	}
	return nil
}

// ReadToken gives the token of a file that somebody named: its first line that is neither empty nor a comment.
func ReadToken(path string) ([]byte, error) {
	text, err := line(path)
	if err != nil {
		return nil, err
	}
	return CheckToken(text, path)
}

// ScanToken is [ReadToken] of what is open already; source says what it is.
func ScanToken(r io.Reader, source string) ([]byte, error) {
	text, err := firstLine(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return CheckToken(text, source)
}

// CheckToken says whether a text that came from somewhere can be a token.
func CheckToken(text, source string) ([]byte, error) {
	if text == "" {
		return nil, fmt.Errorf("%w: %s has no line with a token", ErrToken, source)
	}
	if len(text) > transport.MaxToken {
		return nil, fmt.Errorf("%w: that of %s has %d bytes, the limit is %d", ErrToken, source, len(text),
			transport.MaxToken)
	}
	return []byte(text), nil
}

// errNotOpened is a file that is not there, or not for us.
var errNotOpened = errors.New("cannot be opened")

// line gives the first line of a settings file that says something, "" where none does.
func line(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNotOpened, &FileError{path, err})
	}
	defer f.Close()
	text, err := firstLine(f)
	if err != nil {
		return "", &FileError{path, err}
	}
	return text, nil
}

func firstLine(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return "", err
	}
	whole := len(b) <= maxFile
	text := string(b[:min(len(b), maxFile)])
	for text != "" {
		l, rest, ended := strings.Cut(text, "\n")
		if l = value(l); l != "" {
			if !ended && !whole {
				return "", ErrLong
			}
			return l, nil
		}
		text = rest
	}
	return "", nil
}

// value is a line without comment and blanks.
func value(line string) string {
	line = strings.Trim(line, blanks)
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return strings.TrimRight(line[:i], blanks)
		}
	}
	return line
}
