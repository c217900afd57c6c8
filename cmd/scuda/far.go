//go:build !client

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/tenant"
	record "scuda.dev/scuda/server/usage"
	"scuda.dev/scuda/transport/certificate"
	"scuda.dev/scuda/tunnel"
)

// ours are the options of scuda serve that --on sets by itself.
var ours = []string{"listen", "config", "token-file", "tenants", "client-ca", "insecure", "tls", "tls-cert", "tls-key",
	"state-dir", "transport", "drain"}

// forOn reads options for a server that serves one program.
func forOn(words []string) (*serveOptions, error) {
	o := &serveOptions{}
	f := pflag.NewFlagSet("serve-flags", pflag.ContinueOnError)
	o.flags(f)
	for name, value := range map[string]string{"gpu": "real", "log": "error", "transport": "tcp", "drain": "0",
		"admin": admin.None, "worker-uids": "none"} {
		if err := f.Set(name, value); err != nil {
			return nil, err
		}
		f.Lookup(name).Changed = false
	}
	f.Usage = func() {}
	if err := f.Parse(words); err != nil {
		return nil, fmt.Errorf("--serve-flags: %w; see scuda serve --help", err)
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("--serve-flags: %q is no option of scuda serve", f.Arg(0))
	}
	for _, name := range ours {
		if f.Changed(name) {
			return nil, fmt.Errorf("--serve-flags: --on sets --%s by itself", name)
		}
	}
	return o, nil
}

// checkServing says whether a server can be started with these options.
func checkServing(words []string) error {
	_, err := forOn(words)
	return err
}

// wholeProgram is a program that can serve, for other machines of this kind: this one.
func wholeProgram() (string, error) { return os.Executable() }

// newFar is the server of `scuda run --on`, which the script of package tunnel starts.
func newFar() *cobra.Command {
	var check string
	cmd := &cobra.Command{
		Use:    tunnel.Far,
		Short:  "Serve one program over standard input and output (started by scuda run --on)",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check != "" {
				return tunnel.Check(check)
			}
			if term.IsTerminal(0) {
				return usage(errStartedByOn)
			}
			in, out, err := tunnel.Streams()
			if err != nil {
				return err
			}
			if self, err := os.Executable(); err == nil {
				if used, err := tunnel.Tend(self); err == nil {
					defer used.Close()
				}
			}
			return tunnel.Serve(cmd.Context(), in, out, serveOn)
		},
	}
	cmd.Flags().StringVar(&check, "check", "", "")
	return cmd
}

// serveOn serves as the other side wishes.
func serveOn(ctx context.Context, h tunnel.Hello, ready func(net.Addr, tunnel.Ready)) error {
	o, err := forOn(h.Serve)
	if err != nil {
		return err
	}
	o.listen = onLoopback + ":0"
	c, err := o.config(os.Stderr)
	if err != nil {
		return err
	}
	c.UsageLog, c.StateDir = record.None, "" // nothing is left there
	var shake *tls.Config
	fingerprint := ""
	if h.Direct {
		cert, err := certificate.Temporary()
		if err != nil {
			return err
		}
		shake = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
		fingerprint = certificate.Fingerprint(cert.Leaf)
		c.Addr = ":0" // of all interfaces; who comes from elsewhere needs TLS, and everybody the token
	}
	c.Tenants = tenant.Static([]byte(h.Token), shake)
	c.Ready = func(s server.Status) {
		at, r := s.Addr, tunnel.Ready{Devices: len(s.Devices), Fingerprint: fingerprint}
		if h.Direct {
			port := s.Addr.(*net.TCPAddr).Port
			interfaces, _ := net.InterfaceAddrs() // without them there is the one of ssh
			r.Addresses = tunnel.Addresses(port, os.Getenv("SSH_CONNECTION"), interfaces)
			at = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
		}
		ready(at, r)
	}
	return server.Serve(ctx, *c)
}
