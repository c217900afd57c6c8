//go:build !client

package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// readTrust reads the options about who may connect, and how.
func (o *serveOptions) readTrust(c *server.Config) error {
	if err := cmp.Or(oneOf("tls", o.tls), oneOf("rdma-fabric", o.fabric), oneOf("fabric", o.between)); err != nil {
		return err
	}
	c.TLSAlways, c.TrustedFabric = o.tls == "always", o.fabric == "trusted"
	c.Fabric, c.NCCL = o.between == "trusted", o.nccl
	for _, text := range o.peers {
		p, err := networkOf(text)
		if err != nil {
			return err
		}
		c.Peers = append(c.Peers, p)
	}
	if err := o.refuseWritable(); err != nil {
		return err
	}
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

// networkOf reads a network of --peers, or one address.
func networkOf(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("--peers %q: write NETWORK/BITS (10.0.0.0/8) or an IP address", text)
	}
	return p.Masked(), nil
}

// errWritable is a file that says who may connect, and that every user of the machine can change.
var errWritable = errors.New("every user of this machine can change it")

// decisive are the files and the folder that say who may connect, and in whose name.
func (o *serveOptions) decisive() []string {
	folder, _ := o.stateFolder()
	return []string{o.tokenFile, o.tenants, o.clientCA, o.cert, o.key, folder}
}

// refuseWritable refuses to trust what everybody can change. What is not there yet is made with the right mode, and
// pipes and devices are not kept.
func (o *serveOptions) refuseWritable() error {
	for _, name := range o.decisive() {
		info, err := os.Stat(name)
		if err == nil && (info.Mode().IsRegular() || info.IsDir()) && info.Mode().Perm()&0o002 != 0 {
			return fmt.Errorf("%s: %w; run chmod o-w %[1]s, and see who has written there", name, errWritable)
		}
	}
	return nil
}

// warnOfFiles tells the operator of files with secrets that every user of the machine can read, and of what a group or
// another user can change: who may do that is known to the operator alone.
func (o *serveOptions) warnOfFiles(log *slog.Logger) {
	for _, name := range []string{o.tokenFile, o.tenants, o.key} {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 {
			log.Warn("every user of this machine can read a file with secrets; run chmod o-r FILE", "file", name)
		}
	}
	for _, name := range o.decisive() {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() && !info.IsDir() {
			continue
		}
		if info.Mode().Perm()&0o020 != 0 {
			log.Warn("a group can change what says who may connect; run chmod g-w FILE", "file", name, "mode", info.Mode())
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			log.Warn("another user owns what says who may connect; run chown on FILE", "file", name, "uid", st.Uid)
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
