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
//	erin     token=p4Tr…  max-vram=20GiB       # and has less than others
//	frank    certificate  profiles=profile     # and may count events
//	grace    certificate  class=high share=300 # and goes before others
//	heidi    certificate  gpus=GPU-5c4f…       # and sees this GPU alone
//	ops      certificate  role=admin           # and administers the server
//
// A tenant may have several credentials, so that one can be replaced by the next. Limits of its own stand among them,
// by the names that package config gives them, and what its sessions may do (package isolation); they go before the
// server's. So do the terms of its sessions that have no lease (package lease). A tenant with role=admin may do
// everything that the admin interface offers (package admin). Where there is a file, whoever is not in it is nobody;
// without one, a token file's token is [Default], and a certificate of the authority is the tenant of its name.
package tenant

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport/certificate"
)

// Names that neither a tenants file nor a certificate gives.
const (
	Default = certificate.Default
	Anyone  = certificate.Anyone
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
	Name  string
	key   credential
	until time.Time
}

// Known gives an identity of which somebody has noted [Identity.Key].
func Known(name, key string) Identity { return Identity{Name: name, key: credential(key)} }

// Key is what tells the credential from others, and is no secret: a hash, or a name. "" where none was asked for.
func (i Identity) Key() string { return string(i.key) }

// Until is when the certificate ends that showed it; zero: a token did.
func (i Identity) Until() time.Time { return i.until }

// credential is a token's hash, a key's fingerprint, or a name of the authority's, with what it is in front.
type credential string

func byToken(token []byte) credential {
	sum := sha256.Sum256(token)
	return credential("token-sha256=" + hex.EncodeToString(sum[:]))
}

func byKey(fingerprint string) credential { return credential("certificate=" + fingerprint) }
func byName(name string) credential       { return credential("certificate/" + name) }

// List says which credential is whose, and what limits, profiles and terms tenants have of their own.
type List struct {
	names    map[credential]string
	limits   map[string][]limit
	profiles map[string]isolation.Profile
	terms    map[string]lease.Terms
	admins   map[string]bool
}

// limit is a limit that a tenant has instead of the server's.
type limit struct {
	of    *config.Limit
	value string
}

func newList() List {
	return List{make(map[credential]string), make(map[string][]limit), make(map[string]isolation.Profile),
		make(map[string]lease.Terms), make(map[string]bool)}
}

// Parse reads a tenants file.
func Parse(text string) (List, error) {
	list, names := newList(), make(map[string]bool)
	if len(text) > maxBytes {
		return list, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrFile, len(text), maxBytes)
	}
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
		if err := certificate.CheckTenant(name); err != nil {
			return list, bad("%w", err)
		}
		if names[name] {
			return list, bad("%s has a line already", name)
		}
		if names[name] = true; len(names) > maxTenants {
			return list, bad("more than %d tenants", maxTenants)
		}
		if err := list.add(name, words[1:]); err != nil {
			return list, bad("%s: %w", name, err)
		}
	}
	return list, nil
}

// add enters a tenant.
func (l *List) add(name string, words []string) error {
	credentials := 0
	said := make(map[string]bool)
	for _, w := range words {
		if isTerm, err := l.addTerm(name, w, said); isTerm || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if isLimit, err := l.addSetting(name, w); isLimit || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		c, err := parseCredential(name, w)
		if err != nil {
			return err
		}
		if other, taken := l.names[c]; taken {
			return fmt.Errorf("a credential of %s", other)
		}
		l.names[c] = name
		credentials++
	}
	if credentials == 0 {
		return errors.New("no credential; write token=…, token-sha256=…, certificate or certificate=sha256:…")
	}
	return nil
}

// addTerm enters a word that is one of the terms; said are those that stood before it. It says whether it is one.
func (l *List) addTerm(name, word string, said map[string]bool) (bool, error) {
	kind, value, _ := strings.Cut(word, "=")
	t, ok := l.terms[name]
	if !ok {
		t = lease.Usual()
	}
	var err error
	switch kind {
	case "share":
		t.Share, err = lease.ParseShare(value)
	case "class":
		t.Class, err = lease.ParseClass(value)
	case "gpus":
		t.GPUs, err = lease.ParseUUIDs(value)
	default:
		return false, nil
	}
	if said[kind] {
		err = fmt.Errorf("%s stands there twice", kind)
	}
	said[kind], l.terms[name] = true, t
	return true, err
}

// roleAdmin is the one role that there is beside that of all tenants.
const roleAdmin = "admin"

// addSetting enters a word that is a limit, or names profiles or a role. It says whether it is one.
func (l *List) addSetting(name, word string) (bool, error) {
	kind, value, _ := strings.Cut(word, "=")
	if kind == "role" {
		switch {
		case value != roleAdmin:
			return true, fmt.Errorf("role: %.40q is none; write role=%s, or leave it away", value, roleAdmin)
		case l.admins[name]:
			return true, errors.New("role stands there twice")
		}
		l.admins[name] = true
		return true, nil
	}
	if kind == "profiles" {
		p, err := isolation.ParseProfiles(value)
		if _, twice := l.profiles[name]; twice {
			err = errors.New("they stand there twice")
		}
		if l.profiles[name] = p; err != nil {
			err = fmt.Errorf("profiles: %w", err)
		}
		return true, err
	}
	of, ok := config.LimitNamed(kind)
	if !ok {
		return false, nil
	}
	for _, other := range l.limits[name] {
		if other.of == of {
			return true, fmt.Errorf("%s stands there twice", kind)
		}
	}
	l.limits[name] = append(l.limits[name], limit{of, value})
	return true, of.Set(new(config.Limits), value)
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
	return "", errors.New("a word that is neither a limit nor profiles=, share=, class=, gpus=, role= nor a credential " +
		"of a known kind; write token=…, token-sha256=…, certificate or certificate=sha256:…")
}

// Admit says whose connection it is: by a token, if there is one, else by a certificate that the handshake verified.
func (s *snapshot) admit(token []byte, state *tls.ConnectionState) (Identity, bool) {
	if s.open {
		return Identity{Name: Anyone}, true
	}
	var shown []credential
	var until time.Time
	if len(token) > 0 {
		shown = append(shown, byToken(token))
	}
	if state != nil && len(state.VerifiedChains) > 0 {
		leaf := state.PeerCertificates[0]
		until = leaf.NotAfter
		shown = append(shown, byKey(certificate.Fingerprint(leaf)), byName(leaf.Subject.CommonName))
	}
	for _, c := range shown {
		if name, ok := s.name(c); ok {
			if len(token) > 0 && c == shown[0] {
				until = time.Time{}
			}
			return Identity{name, c, until}, true
		}
	}
	return Identity{}, false
}

// name gives the tenant of a credential.
func (s *snapshot) name(c credential) (string, bool) {
	if name, ok := s.list.names[c]; ok { // a look-up by hash: its time tells nothing of the token
		return name, true
	}
	name, named := strings.CutPrefix(string(c), string(byName("")))
	if named && s.anyName && certificate.CheckTenant(name) == nil {
		return name, true
	}
	return "", false
}
