package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// readTrust reads the options about who may connect, and how.
func (o *serveOptions) readTrust(c *server.Config) error {
	if o.tls != "auto" && o.tls != "always" {
		return fmt.Errorf("--tls %s: auto or always", o.tls)
	}
	if o.fabric != "trusted" && o.fabric != "untrusted" {
		return fmt.Errorf("--rdma-fabric %s: trusted or untrusted", o.fabric)
	}
	c.TLSAlways, c.TrustedFabric = o.tls == "always", o.fabric == "trusted"
	asks := o.tokenFile != "" || o.tenants != "" || o.clientCA != ""
	if err := server.CheckAddress(c.Addr, asks, o.insecure); err != nil {
		return err
	}
	files := tenant.Files{Tenants: o.tenants, ClientCA: o.clientCA, Certificate: o.cert, Key: o.key}
	if o.tokenFile != "" {
		files.Token = func() ([]byte, error) { return server.ReadToken(o.tokenFile) }
	}
	if files.Certificate != "" && files.Key == "" {
		files.Key = strings.TrimSuffix(files.Certificate, ".crt") + ".key"
	}
	if files.Certificate == "" && o.needsTLS(c) {
		folder, err := o.stateFolder()
		if err != nil {
			return err
		}
		if _, err := certificate.Keep(folder); err != nil {
			return fmt.Errorf("the server's own certificate: %w", err)
		}
		files.Certificate = filepath.Join(folder, certificate.ServerFile)
		files.Key = filepath.Join(folder, certificate.KeyFile)
	}
	var err error
	c.Tenants, err = tenant.Read(files)
	return err
}

// warnOfSecrets tells the operator of files with secrets that every user of the machine can read.
func (o *serveOptions) warnOfSecrets(log *slog.Logger) {
	for _, name := range []string{o.tokenFile, o.tenants, o.key} {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 {
			log.Warn("every user of this machine can read a file with secrets; run chmod o-r FILE", "file", name)
		}
	}
}

// needsTLS says whether there has to be a certificate: where clients of other machines come and TLS was not waived.
func (o *serveOptions) needsTLS(c *server.Config) bool {
	if c.TLSAlways || o.clientCA != "" {
		return true
	}
	full, err := transport.ParseAddress(c.Addr)
	if err != nil || o.insecure {
		return false
	}
	host, _, err := net.SplitHostPort(full)
	return err == nil && !config.IsLoopback(host)
}

func (o *serveOptions) stateFolder() (string, error) {
	if o.state != "" {
		return o.state, nil
	}
	return config.StateFolder()
}
