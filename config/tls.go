package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"scuda.dev/scuda/internal/atomicfile"
	"scuda.dev/scuda/transport/certificate"
)

// Errors of a client's settings for TLS.
var (
	ErrKnown = errors.New("the server has had TLS before, and is not spoken to without")
	ErrState = errors.New("no folder for the server's certificate: HOME is not set; name one with --state-dir FOLDER, " +
		"or a certificate with --tls-cert FILE")
	ErrCert = errors.New("unusable client certificate")
)

// plain is what stands in the file of known servers in the place of a fingerprint, where somebody wrote --insecure.
const plain = "plain"

// KnownFile is the file in which a client keeps which server has which fingerprint, one "HOST:PORT FINGERPRINT" a
// line.
func KnownFile() (string, error) { return file("known_servers") }

// clientTLS says how a client meets a server: nil is without TLS. The order matters: who has seen TLS of a server, or
// was told what to expect, does not go on without. told is a fingerprint, for where nothing else is known.
func clientTLS(address string, s *Saved, told string) (*tls.Config, error) {
	cfg, err := serverTrust(address, s, told)
	if err != nil || cfg == nil {
		return nil, err
	}
	cert, err := clientCertificate(s)
	if err != nil {
		return nil, err
	}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	return cfg, nil
}

func serverTrust(address string, s *Saved, told string) (*tls.Config, error) {
	if text, err := ofServer("SCUDA_FINGERPRINT", address); err != nil {
		return nil, err
	} else if text != "" {
		fingerprint, err := certificate.ParseFingerprint(text)
		if err != nil {
			return nil, fmt.Errorf("SCUDA_FINGERPRINT: %w", err)
		}
		return certificate.Pinned(fingerprint), nil
	}
	known, err := Known(address)
	switch {
	case err != nil:
		return nil, err
	case known == plain:
		return nil, nil
	case known != "":
		return certificate.Pinned(known), nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	near := IsLoopback(host)
	if ca := cmp.Or(os.Getenv("SCUDA_CA"), s.CA); ca != "" {
		return trusting(ca, host)
	} else if ca, err := file("ca.crt"); err == nil && !near {
		if cfg, err := trusting(ca, host); !errors.Is(err, fs.ErrNotExist) {
			return cfg, err
		}
	}
	if told != "" {
		fingerprint, err := certificate.ParseFingerprint(told)
		if err != nil {
			return nil, err
		}
		return certificate.Pinned(fingerprint), nil
	}
	if insecure, err := Insecure(); near || insecure || err != nil {
		return nil, err
	}
	return certificate.Pinned(""), nil
}

func trusting(ca, host string) (*tls.Config, error) {
	pool, err := certificate.Pool(ca)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return certificate.Trusting(pool, host), nil
}

// StateFolder is where a server keeps what it makes for itself: systemd's folder for it, else the user's.
func StateFolder() (string, error) {
	if folder := os.Getenv("STATE_DIRECTORY"); strings.HasPrefix(folder, "/") {
		folder, _, _ = strings.Cut(folder, ":")
		return folder, nil
	}
	if folder := os.Getenv("XDG_STATE_HOME"); strings.HasPrefix(folder, "/") {
		return folder + "/scuda", nil
	}
	home := os.Getenv("HOME")
	if home == "" {
		return "", ErrState
	}
	return home + "/.local/state/scuda", nil
}

// IsLoopback says whether a host is this machine by its name or address alone.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Insecure says whether a client may go on without TLS to a server elsewhere of which it knows nothing.
func Insecure() (bool, error) {
	switch text := strings.Trim(os.Getenv("SCUDA_INSECURE"), blanks); text {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, fmt.Errorf("SCUDA_INSECURE: write 1 or 0, not %.40q", text)
	}
}

// clientCertificate is what the client shows of itself, nil where there is none.
func clientCertificate(s *Saved) (*tls.Certificate, error) {
	cert, key := os.Getenv("SCUDA_CERT"), os.Getenv("SCUDA_KEY")
	if cert == "" && s.Cert != "" {
		cert, key = s.Cert, s.Key
	}
	if cert == "" {
		folder, err := file("")
		if err != nil {
			return nil, nil //nolint:nilerr // no folder, no certificate
		}
		cert, key = folder+"client.crt", folder+"client.key"
		if _, err := os.Stat(cert); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	}
	if key == "" {
		key = strings.TrimSuffix(cert, ".crt") + ".key"
	}
	c, err := certificate.Load(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCert, err)
	}
	return &c, nil
}

// Known gives the fingerprint that a server had, "" where nothing is known of it.
func Known(address string) (string, error) {
	lines, path, err := known()
	if err != nil {
		return "", err
	}
	for _, l := range lines {
		words := strings.Fields(value(l))
		if len(words) == 0 || words[0] != address {
			continue
		}
		if len(words) != 2 {
			return "", &FileError{path, fmt.Errorf("the line of %s is not HOST:PORT FINGERPRINT", address)}
		}
		if words[1] == plain {
			return plain, nil
		}
		fingerprint, err := certificate.ParseFingerprint(words[1])
		if err != nil {
			return "", &FileError{path, fmt.Errorf("the line of %s: %w", address, err)}
		}
		return fingerprint, nil
	}
	return "", nil
}

// Remember notes the fingerprint of a server that had none. A "" is that of a server that is spoken to without TLS,
// which one that has had TLS never becomes.
func Remember(address, fingerprint string) error {
	if fingerprint == "" {
		fingerprint = plain
	}
	before, err := Known(address)
	if err != nil || before == fingerprint {
		return err
	}
	lines, path, err := known()
	if err != nil {
		return err
	}
	if before != "" && fingerprint == plain {
		return fmt.Errorf("%w; remove its line from %s if that is to change", ErrKnown, path)
	}
	text := "# Servers and the fingerprints of their keys; written by scuda login\n"
	for _, l := range lines {
		if words := strings.Fields(l); len(words) > 0 && words[0] != "#" && words[0] != address {
			text += l + "\n"
		}
	}
	return replace(path, text+address+" "+fingerprint+"\n", 0o644)
}

func known() (lines []string, path string, err error) {
	path, err = KnownFile()
	if errors.Is(err, ErrFolder) {
		return nil, "", nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, path, nil
	}
	if err != nil {
		return nil, path, &FileError{path, err}
	}
	if len(text) > maxFile {
		return nil, path, &FileError{path, errors.New("it is longer than 64 KiB")}
	}
	return strings.Split(string(text), "\n"), path, nil
}

// replace makes text the contents of a file, all at once.
func replace(path, text string, mode fs.FileMode) error {
	if err := atomicfile.Replace(path, []byte(text), mode); err != nil {
		return &FileError{path, err}
	}
	return nil
}
