// Package tenant says who may use a server: the identities in whose names sessions run, and by which credentials they
// are known. The supervisor asks it at each handshake; it owns nothing but what it read of files.
//
// A tenants file has one tenant a line: a name, and what shows it.
//
//	# name   credentials
//	alice    token=Zq3v…                       # presents this token
//	bob      token-sha256=9f86d08…             # presents a token with this SHA-256
//	carol    certificate                       # shows a certificate of the authority with this name
//	dave     certificate=sha256:5e88489…       # shows a certificate with this key
//
// A tenant may have several credentials, so that one can be replaced by the next. Where there is a file, whoever is not
// in it is nobody; without one, a token file's token is [Default], and a certificate of the authority is the tenant of
// its name.
package tenant

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"scuda.dev/scuda/transport/certificate"
)

// Names that no file gives.
const (
	Default = "default" // who presents the token of the token file
	Anyone  = "anyone"  // who presents nothing, where nothing is asked for
)

// ErrFile is a tenants file that cannot be used.
var ErrFile = errors.New("unusable tenants file")

// Most bytes and tenants of a file.
const (
	maxBytes   = 4 << 20
	maxTenants = 100_000
	leastToken = 8
)

// Identity is a tenant and the credential that showed it.
type Identity struct {
	Name string
	key  credential
}

// credential is a token's hash, a key's fingerprint, or a name of the authority's, with what it is in front.
type credential string

func byToken(token []byte) credential {
	sum := sha256.Sum256(token)
	return credential("token-sha256=" + hex.EncodeToString(sum[:]))
}

func byKey(fingerprint string) credential { return credential("certificate=" + fingerprint) }
func byName(name string) credential       { return credential("certificate/" + name) }

// List says which credential is whose.
type List map[credential]string

// Parse reads a tenants file.
func Parse(text string) (List, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrFile, len(text), maxBytes)
	}
	list, names := make(List), make(map[string]bool)
	number := 0
	for line := range strings.Lines(text) {
		number++
		bad := func(format string, args ...any) error {
			return fmt.Errorf("%w: line %d: %w", ErrFile, number, fmt.Errorf(format, args...))
		}
		if i := strings.IndexByte(line, '#'); i >= 0 {
			line = line[:i]
		}
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		name := words[0]
		if err := certificate.CheckName(name); err != nil {
			return nil, bad("%w", err)
		}
		if names[name] {
			return nil, bad("%s has a line already", name)
		}
		if names[name] = true; len(names) > maxTenants {
			return nil, bad("more than %d tenants", maxTenants)
		}
		if len(words) == 1 {
			return nil, bad("%s has no credential; write token=…, token-sha256=…, certificate or certificate=sha256:…", name)
		}
		for _, w := range words[1:] {
			c, err := parseCredential(name, w)
			if err != nil {
				return nil, bad("%s: %w", name, err)
			}
			if other, taken := list[c]; taken {
				return nil, bad("%s has a credential of %s", name, other)
			}
			list[c] = name
		}
	}
	return list, nil
}

// parseCredential reads a word. It is not repeated in an error: it may be a secret.
func parseCredential(name, word string) (credential, error) {
	kind, text, has := strings.Cut(word, "=")
	switch {
	case kind == "token" && has:
		if len(text) < leastToken {
			return "", fmt.Errorf("a token of %d bytes; it must have %d at least", len(text), leastToken)
		}
		return byToken([]byte(text)), nil
	case kind == "token-sha256" && has:
		sum, err := hex.DecodeString(text)
		if err != nil || len(sum) != sha256.Size {
			return "", errors.New("token-sha256= wants 64 hexadecimal digits")
		}
		return credential("token-sha256=" + hex.EncodeToString(sum)), nil
	case kind == "certificate" && has:
		f, err := certificate.ParseFingerprint(text)
		return byKey(f), err
	case word == "certificate":
		return byName(name), nil
	}
	return "", errors.New("a credential of no known kind; " +
		"write token=…, token-sha256=…, certificate or certificate=sha256:…")
}

// Admit says whose connection it is: by a token, if there is one, else by a certificate that the handshake verified.
func (s *snapshot) admit(token []byte, state *tls.ConnectionState) (Identity, bool) {
	if s.open {
		return Identity{Name: Anyone}, true
	}
	var shown []credential
	if len(token) > 0 {
		shown = append(shown, byToken(token))
	}
	if state != nil && len(state.VerifiedChains) > 0 {
		leaf := state.PeerCertificates[0]
		shown = append(shown, byKey(certificate.Fingerprint(leaf)), byName(leaf.Subject.CommonName))
	}
	for _, c := range shown {
		if name, ok := s.name(c); ok {
			return Identity{name, c}, true
		}
	}
	return Identity{}, false
}

// name gives the tenant of a credential.
func (s *snapshot) name(c credential) (string, bool) {
	if name, ok := s.list[c]; ok { // a look-up by hash: its time tells nothing of the token
		return name, true
	}
	name, named := strings.CutPrefix(string(c), string(byName("")))
	if named && s.anyName && certificate.CheckName(name) == nil {
		return name, true
	}
	return "", false
}
