package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Names of an authority's files.
const (
	AuthorityFile    = "ca.crt"
	AuthorityKeyFile = "ca.key"
)

const (
	authorityYears = 10
	issuedYears    = 2
)

// ErrName is a name that a certificate, or a tenant, cannot have.
var ErrName = errors.New("bad name")

const longestName = 64

// CheckName says whether tenants and certificates may bear a name. It stands in logs and in metrics.
func CheckName(name string) error {
	if !validName(name) {
		return fmt.Errorf("%w: write 1 to 64 letters, digits, dots, dashes or underlines, not %.80q", ErrName, name)
	}
	return nil
}

// validName is no regular expression, because this package is part of every client, and to compile one takes half a
// millisecond of each program's start.
func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return name != "" && len(name) <= longestName
}

// Names of tenants that a server gives by itself; no certificate and no file gives them.
const (
	Default = "default" // who presents the token of the token file
	Anyone  = "anyone"  // who presents nothing, where nothing is asked for
)

// CheckTenant says whether a certificate, a token or a file may give somebody a name: who had one of the server's own
// would share user, images and memory with those who have it by another right.
func CheckTenant(name string) error {
	if name == Default || name == Anyone {
		return fmt.Errorf("%w: %s is one that the server gives by itself", ErrName, name)
	}
	return CheckName(name)
}

// Authority is a private certificate authority: a folder with its certificate and its key.
type Authority struct {
	folder string
	cert   *x509.Certificate
	key    crypto.PrivateKey
}

// NewAuthority makes an authority in a folder. One that is there already stays as it is, and that is an error.
func NewAuthority(folder string) error {
	template, err := newTemplate("scuda CA", authorityYears)
	if err != nil {
		return err
	}
	template.IsCA, template.MaxPathLenZero = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	return store(folder, AuthorityFile, AuthorityKeyFile, der, key)
}

// OpenAuthority opens the authority of a folder.
func OpenAuthority(folder string) (*Authority, error) {
	pair, err := Load(filepath.Join(folder, AuthorityFile), filepath.Join(folder, AuthorityKeyFile))
	if err != nil {
		return nil, err
	}
	return &Authority{folder: folder, cert: pair.Leaf, key: pair.PrivateKey}, nil
}

// Issue makes a certificate and its key, NAME.crt and NAME.key, in the authority's folder: for a server, which clients
// reach by that name or address, or for a client, which is the tenant of that name.
func (a *Authority) Issue(name string, server bool) (certFile, keyFile string, err error) {
	check := CheckTenant
	if server {
		check = CheckName
	}
	if err := check(name); err != nil && !(server && isAddress(name)) {
		return "", "", err
	}
	template, err := newTemplate(name, issuedYears)
	if err != nil {
		return "", "", err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		nameOf(template, name)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = name+".crt", name+".key"
	if err := store(a.folder, certFile, keyFile, der, key); err != nil {
		return "", "", err
	}
	return filepath.Join(a.folder, certFile), filepath.Join(a.folder, keyFile), nil
}

// Pool reads the authorities of a file.
func Pool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%w: %s has none (PEM)", ErrFile, file)
	}
	return p, nil
}

// Trusting is how a client meets a server whose certificate an authority of the pool must have made for that name.
func Trusting(pool *x509.CertPool, name string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: name}
}

// IsExist says whether an error of this package is that something is there already.
func IsExist(err error) bool { return errors.Is(err, fs.ErrExist) }
