// Package certificate makes and keeps the certificates by which clients and servers know each other, and says what
// they are worth. It knows neither connections nor settings.
//
// A server's certificate is its own ([Keep]), which clients pin by the fingerprint of its key, or one of an authority
// ([Authority]) that its clients trust. A client's is always an authority's.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"scuda.dev/scuda/internal/atomicfile"
)

// Errors of this package.
var (
	ErrFingerprint = errors.New("bad fingerprint: write sha256: and 64 hexadecimal digits")
	ErrFile        = errors.New("unusable certificate")
)

// Names of the files that hold a server's own certificate and its key.
const (
	ServerFile = "server.crt"
	KeyFile    = "server.key"
)

const (
	prefix = "sha256:"
	years  = 20 // of a certificate that is pinned: nobody looks at its dates
)

// Fingerprint names the key of a certificate. A certificate that is renewed with its key keeps it.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return prefix + hex.EncodeToString(sum[:])
}

// ParseFingerprint checks what somebody wrote, and gives it as [Fingerprint] does.
func ParseFingerprint(s string) (string, error) {
	s = strings.ToLower(s)
	sum, err := hex.DecodeString(strings.TrimPrefix(s, prefix))
	if err != nil || len(sum) != sha256.Size {
		return "", fmt.Errorf("%w, not %.80q", ErrFingerprint, s)
	}
	return prefix + hex.EncodeToString(sum), nil
}

// Same compares fingerprints.
func Same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Keep gives the certificate of a folder, which it makes the first time.
func Keep(folder string) (tls.Certificate, error) {
	c, err := Load(filepath.Join(folder, ServerFile), filepath.Join(folder, KeyFile))
	if !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	der, key, err := ofServer()
	if err != nil {
		return c, err
	}
	if err := store(folder, ServerFile, KeyFile, der, key); err != nil {
		return c, err
	}
	return Load(filepath.Join(folder, ServerFile), filepath.Join(folder, KeyFile))
}

// Temporary makes a server's certificate that nobody keeps.
func Temporary() (tls.Certificate, error) {
	der, key, err := ofServer()
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// ofServer makes a key, and a certificate that it signs itself.
func ofServer() (der []byte, key *ecdsa.PrivateKey, err error) {
	name, _ := os.Hostname()
	if name == "" {
		name = "scuda"
	}
	template, err := newTemplate(name, years)
	if err != nil {
		return nil, nil, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{name}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return der, key, err
}

// Load reads a certificate and its key.
func Load(certFile, keyFile string) (tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return c, fmt.Errorf("%w of %s: %w", ErrFile, certFile, err)
	}
	return c, nil
}

func newTemplate(name string, years int) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"scuda"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(years, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}, nil
}

// store writes a certificate and its key. The key is written first and linked into place, so that of two servers that
// begin at once one makes the pair and neither finds half of it.
func store(folder, certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	if err := atomicfile.Create(filepath.Join(folder, keyFile), keyText, 0o600); err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return atomicfile.Create(filepath.Join(folder, certFile), text, 0o644)
}

// Pinned is how a client meets a server of which it knows the fingerprint. Every other server is a [*PinError].
func Pinned(fingerprint string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Nobody vouches for the key; it is the one that was seen before.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if got := Fingerprint(s.PeerCertificates[0]); !Same(got, fingerprint) {
				return &PinError{Want: fingerprint, Got: got}
			}
			return nil
		},
	}
}

// PinError is a server that is not the one that was seen before. Without Want nothing is known of it.
type PinError struct{ Want, Got string }

func (e *PinError) Error() string {
	if e.Want == "" {
		return "the server is unknown; its fingerprint is " + e.Got
	}
	return "the server is another one: its fingerprint is " + e.Got + ", expected was " + e.Want
}

func isAddress(name string) bool { return net.ParseIP(name) != nil }

// nameOf puts a name where certificates of servers have it.
func nameOf(c *x509.Certificate, name string) {
	if ip := net.ParseIP(name); ip != nil {
		c.IPAddresses = append(c.IPAddresses, ip)
	} else {
		c.DNSNames = append(c.DNSNames, name)
	}
}
