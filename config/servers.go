package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/transport"
)

// Errors of the remembered servers.
var (
	ErrName      = errors.New("bad name for a server: write letters, digits, '.', '-' and '_'")
	ErrNameTaken = errors.New("the name is that of another server")
	ErrNoSuch    = errors.New("no such server is remembered")
)

const longestName = 64

// Saved is a server that somebody logged in to: a line of the file of servers,
//
//	NAME HOST:PORT [token=TOKEN] [cert=FILE] [key=FILE] [ca=FILE]
//
// in which blanks, '%' and '#' of a value stand as %XX. No two have a name or an address in common.
type Saved struct {
	Name    string
	Address string // HOST:PORT
	Token   []byte // nil: none
	// Files of the client's certificate and its key, and of the authorities that the server's has to be of; "": none.
	Cert, Key, CA string
}

// Credential says in a word by what the client is known there.
func (s *Saved) Credential() string {
	switch {
	case s.Cert != "" && s.Token != nil:
		return "token, certificate"
	case s.Cert != "":
		return "certificate"
	case s.Token != nil:
		return "token"
	}
	return "none"
}

// ServersFile is the file that holds the servers and the credentials for them. Others must not read it.
func ServersFile() (string, error) { return file("servers") }

// Servers are the remembered ones. Those of the host file are always among them, also where the file of servers does
// not have them.
func Servers() ([]Saved, error) {
	list, err := readServers()
	if err != nil {
		return nil, err
	}
	path, err := HostFile()
	if err != nil {
		return list, nil //nolint:nilerr // no folder, no host file
	}
	text, err := line(path)
	if err != nil || text == "" {
		return list, nil //nolint:nilerr // Configured says what is wrong with the host file
	}
	used, err := List(text)
	if err != nil {
		return list, nil //nolint:nilerr // likewise
	}
	for _, address := range used {
		if at(list, address) == nil {
			list = append(list, Saved{Name: FreeName(list, address), Address: address})
		}
	}
	return list, nil
}

func readServers() ([]Saved, error) {
	path, err := ServersFile()
	if errors.Is(err, ErrFolder) {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, &FileError{path, err}
	case len(text) > maxFile:
		return nil, &FileError{path, errors.New("it is longer than 64 KiB")}
	}
	list, err := parseServers(string(text))
	if err != nil {
		return nil, &FileError{path, err}
	}
	return list, nil
}

// Save remembers a server, in the place of the one with its address.
func Save(s Saved) error {
	if err := CheckServerName(s.Name); err != nil {
		return err
	}
	list, err := readServers()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(o Saved) bool { return o.Address == s.Address })
	if i := slices.IndexFunc(list, func(o Saved) bool { return o.Name == s.Name }); i >= 0 {
		return fmt.Errorf("%w: %s is %s; choose one with --name NAME", ErrNameTaken, s.Name, list[i].Address)
	}
	return writeServers(append(list, s))
}

// Find gives the remembered server of a name or an address.
func Find(word string) (*Saved, error) {
	list, err := Servers()
	if err != nil {
		return nil, err
	}
	if s := named(list, word); s != nil {
		return s, nil
	}
	if address, err := transport.ParseAddress(word); err == nil {
		if s := at(list, address); s != nil {
			return s, nil
		}
	}
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	if names == nil {
		return nil, fmt.Errorf("%w: %s; scuda login HOST:PORT remembers one", ErrNoSuch, word)
	}
	return nil, fmt.Errorf("%w: %s; there are %s", ErrNoSuch, word, strings.Join(names, ", "))
}

// FindAll gives the remembered servers of names or addresses with commas between.
func FindAll(words string) (list []Saved, err error) {
	for word := range strings.SplitSeq(words, ",") {
		s, err := Find(strings.Trim(word, blanks))
		if err != nil {
			return nil, err
		}
		list = append(list, *s)
	}
	return list, nil
}

// Forget drops a server and its credential. Programs that used it use what is left of the host file, or have no server
// any more. Its fingerprint stays known.
func Forget(s *Saved) error {
	list, err := readServers()
	if err != nil {
		return err
	}
	path, err := HostFile()
	if err != nil {
		return err
	}
	var used []string
	text, err := line(path)
	if err == nil && text != "" { // before the names in it are forgotten
		used, _ = List(text)
	}
	if err := writeServers(slices.DeleteFunc(list, func(o Saved) bool { return o.Address == s.Address })); err != nil {
		return err
	}
	switch left := slices.DeleteFunc(slices.Clone(used), func(a string) bool { return a == s.Address }); {
	case len(left) == len(used) && text != s.Name:
		return nil
	case len(left) == 0:
		return os.Remove(path)
	default:
		return SetServers(left...)
	}
}

// Address completes what somebody wrote for a server, the name of a remembered one or its address, to HOST:PORT.
func Address(word string) (string, error) {
	if !strings.ContainsAny(word, ".:") {
		list, err := readServers()
		if err != nil {
			return "", err
		}
		if s := named(list, word); s != nil {
			return s.Address, nil
		}
	}
	return transport.ParseAddress(word)
}

// CheckServerName says whether a server can be called so.
func CheckServerName(name string) error {
	good := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-:[]", r)
	}
	if name == "" || len(name) > longestName || name[0] == '-' ||
		strings.ContainsFunc(name, func(r rune) bool { return !good(r) }) {
		return fmt.Errorf("%w, at most %d, not %.80q", ErrName, longestName, name)
	}
	return nil
}

// FreeName is what a server is called that got no name: the first part of its host's, or more where that is taken.
func FreeName(list []Saved, address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	first, _, _ := strings.Cut(host, ".")
	if net.ParseIP(host) != nil {
		first = host
	}
	for _, name := range []string{first, host} {
		if s := named(list, name); CheckServerName(name) == nil && (s == nil || s.Address == address) {
			return name
		}
	}
	return address
}

func named(list []Saved, name string) *Saved {
	if i := slices.IndexFunc(list, func(s Saved) bool { return s.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

func at(list []Saved, address string) *Saved {
	if i := slices.IndexFunc(list, func(s Saved) bool { return s.Address == address }); i >= 0 {
		return &list[i]
	}
	return nil
}

// saved gives what is remembered of the server at an address, an empty one where nothing is.
func saved(list []Saved, address string) *Saved {
	if s := at(list, address); s != nil {
		return s
	}
	return new(Saved)
}

func writeServers(list []Saved) error {
	path, err := ServersFile()
	if err != nil {
		return err
	}
	text := appendServers(nil, list)
	if len(text) > maxFile {
		return &FileError{path, errors.New("there is no room for another server: 64 KiB are full; " +
			"scuda logout NAME makes some")}
	}
	return replace(path, string(text), 0o600)
}

func appendServers(b []byte, list []Saved) []byte {
	b = append(b, "# scuda's servers and the credentials for them, which are secret; written by scuda login\n"...)
	for _, s := range list {
		b = append(b, s.Name+" "+s.Address...)
		for _, word := range []struct{ name, value string }{
			{"token", string(s.Token)}, {"cert", s.Cert}, {"key", s.Key}, {"ca", s.CA},
		} {
			if word.value != "" {
				b = append(b, " "+word.name+"="+escape(word.value)...)
			}
		}
		b = append(b, '\n')
	}
	return b
}

// parseServers reads the file of servers. A value is not repeated in an error: it may be a secret.
func parseServers(text string) (list []Saved, err error) {
	number := 0
	for l := range strings.Lines(text) {
		number++
		words := strings.FieldsFunc(value(l), func(r rune) bool { return r == ' ' || r == '\t' }) // as before comments
		if len(words) == 0 {
			continue
		}
		bad := func(why string, args ...any) error {
			return fmt.Errorf("line %d: %w", number, fmt.Errorf(why, args...))
		}
		if len(words) < 2 {
			return nil, bad("write NAME HOST:PORT and credentials")
		}
		s := Saved{Name: words[0]}
		if err := CheckServerName(s.Name); err != nil {
			return nil, bad("%w", err)
		}
		if s.Address, err = transport.ParseAddress(words[1]); err != nil {
			return nil, bad("%w", err)
		}
		if named(list, s.Name) != nil || at(list, s.Address) != nil {
			return nil, bad("%s or its address has a line already", s.Name)
		}
		for _, word := range words[2:] {
			name, text, _ := strings.Cut(word, "=")
			v, err := unescape(text)
			if err != nil || v == "" {
				return nil, bad("%.40s= has no usable value", name)
			}
			switch name {
			case "token":
				s.Token = []byte(v)
			case "cert":
				s.Cert = v
			case "key":
				s.Key = v
			case "ca":
				s.CA = v
			default:
				return nil, bad("%.40q is none of token=, cert=, key= and ca=", name)
			}
		}
		if len(s.Token) > transport.MaxToken {
			return nil, bad("%w: it has %d bytes, the limit is %d", ErrToken, len(s.Token), transport.MaxToken)
		}
		list = append(list, s)
	}
	return list, nil
}

var errEscape = errors.New("'%' is not followed by two hexadecimal digits")

// escape writes a value so that it is one word of a line.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == '%' || c == '#' || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errEscape
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", errEscape
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nil
}
