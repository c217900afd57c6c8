package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport/certificate"
)

// loginOptions are the options of `scuda login`.
type loginOptions struct {
	name, tokenFile, cert, key, ca, fingerprint string
	insecure, asJSON                            bool
}

// loginFacts are what `scuda login` tells.
type loginFacts struct {
	savedFacts
	Tenant  string `json:"tenant,omitempty"`
	Profile string `json:"profile,omitempty"` // what our sessions may do there
	GPUs    string `json:"gpus"`
	Version string `json:"server_version"`
	File    string `json:"file"` // that remembers it
}

func newLogin() *cobra.Command {
	var o loginOptions
	cmd := &cobra.Command{
		Use:   "login [flags] HOST[:PORT][,HOST[:PORT]...]",
		Short: "Remember a server and the credential for it",
		Long: `Ask a server whether it takes us, and remember it with the credential: programs use it from now on. If it
wants a token and none is configured, the token is asked for and not shown. The first time, the server's fingerprint
is shown: it must be the one that the server printed when it started.

Of several servers each is asked and remembered by itself, and programs then use all of them.

What is remembered lies in the file servers of the settings' folder, which nobody else may read. The client's
libraries read it as well.

--json prints, when the server is remembered:
` + savedHelp + `
  tenant          who we are there, where the server tells tenants apart
  profile         what our sessions may do there beside using GPUs
  gpus            what the server has
  server_version  its release
  file            the file that remembers it`,
		Example: `  scuda login gpu1.example.org
  scuda login gpu1 --token-file token              # or - for standard input
  scuda login gpu1 --ca ca.crt --cert alice.crt    # the key lies beside as alice.key`,
		SuggestFor: []string{"connect", "auth", "add", "host"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which server? scuda login HOST[:PORT]"))
			}
			return nil
		},
		ValidArgsFunction: completeServer,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runAll(cmd.Context(), atTerminal(cmd), args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "call the server `NAME` (default: the first part of its host's name)")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token; - is standard input")
	f.StringVar(&o.cert, "cert", "", "show the client's certificate of this `FILE`")
	f.StringVar(&o.key, "key", "", "`FILE` with its key (default: that of --cert with .key)")
	f.StringVar(&o.ca, "ca", "", "`FILE` with the authorities that the server's certificate must be of")
	f.StringVar(&o.fingerprint, "fingerprint", "", "the server must have this `FINGERPRINT` (sha256:…); nobody is asked")
	f.BoolVar(&o.insecure, "insecure", false, "use a server on another machine without TLS")
	f.BoolVar(&o.asJSON, "json", false, "print JSON; questions are asked all the same")
	return cmd
}

// runAll is run, of several servers with commas between one after the other. Programs use all of them then.
func (o *loginOptions) runAll(ctx context.Context, who people, words string) error {
	servers, err := config.List(words)
	switch {
	case err != nil:
		return usage(err)
	case len(servers) == 1:
		return o.run(ctx, who, words)
	case o.name != "" || o.fingerprint != "":
		return usage(errors.New("--name and --fingerprint are of one server: log in to each by itself, " +
			"then scuda use NAME,NAME"))
	}
	for _, server := range servers {
		if err := o.run(ctx, who, server); err != nil {
			return err
		}
	}
	if err := config.SetServers(servers...); err != nil {
		return err
	}
	if !o.asJSON {
		fmt.Fprintf(who.out, "programs use all %d, in this order\n", len(servers))
		noteOther(who.out, "them", servers...)
	}
	return nil
}

func (o *loginOptions) run(ctx context.Context, who people, word string) error {
	s, err := o.server(word)
	if err != nil {
		return usage(err)
	}
	m := meeting{who: who, server: s, insecure: o.insecure}
	if m.fingerprint = o.fingerprint; m.fingerprint != "" {
		if m.fingerprint, err = certificate.ParseFingerprint(o.fingerprint); err != nil {
			return usage(err)
		}
	}
	if err := o.token(&m); err != nil {
		return err
	}
	w, err := m.hold(ctx)
	if err != nil {
		return err
	}
	if file, err := config.TokenFile(); err == nil && m.tokenOf == file {
		s.Token = nil // it stands in the settings' folder by itself
	}
	err = config.Save(*s)
	if err == nil {
		err = config.SetServers(s.Address)
	}
	if err != nil {
		return fmt.Errorf("%s answers, but cannot be remembered: %w", s.Address, err)
	}
	file, err := config.ServersFile()
	if err != nil {
		return err
	}
	if o.asJSON {
		list, err := allFacts([]config.Saved{*s})
		if err != nil {
			return err
		}
		return writeJSON(who.out, loginFacts{
			savedFacts: list[0], Tenant: w.Tenant, Profile: w.Profile, GPUs: devices(w), Version: w.Version, File: file,
		})
	}
	fmt.Fprintf(who.out, "%s answers, %s", s.Address, devices(w))
	if w.Tenant != "" {
		fmt.Fprintf(who.out, ", as tenant %s", w.Tenant)
	}
	fmt.Fprintf(who.out, "; %s\nremembered in %s as %s (credential: %s); run programs with: scuda run -- PROGRAM\n",
		m.safety, file, s.Name, s.Credential())
	noteOther(who.out, "the file", s.Address)
	return nil
}

// server is what will be remembered, without the token.
func (o *loginOptions) server(word string) (*config.Saved, error) {
	address, err := config.Address(word)
	if err != nil {
		return nil, err
	}
	list, err := config.Servers()
	if err != nil {
		return nil, err
	}
	s := &config.Saved{Name: o.name, Address: address}
	if s.Name == "" {
		s.Name = config.FreeName(list, address)
		for _, other := range list {
			if other.Address == address {
				s.Name = other.Name
			}
		}
	}
	if err := config.CheckServerName(s.Name); err != nil {
		return nil, err
	}
	if o.key != "" && o.cert == "" {
		return nil, errors.New("--key needs --cert FILE")
	}
	for _, path := range []struct {
		given string
		to    *string
	}{{o.cert, &s.Cert}, {o.key, &s.Key}, {o.ca, &s.CA}} {
		if path.given == "" {
			continue
		}
		if *path.to, err = filepath.Abs(path.given); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// token finds the token to begin with. If the server takes none, or another, one that nobody named is asked for.
func (o *loginOptions) token(m *meeting) (err error) {
	s := m.server
	switch {
	case o.tokenFile == "-":
		m.tokenOf = "standard input"
		s.Token, err = config.ScanToken(m.who.in, m.tokenOf)
	case o.tokenFile != "":
		m.tokenOf = o.tokenFile
		s.Token, err = config.ReadToken(o.tokenFile)
	case o.cert != "":
	default:
		s.Token, m.tokenOf, err = config.Token(s.Address)
		m.asks = os.Getenv("SCUDA_TOKEN") == "" && os.Getenv("SCUDA_TOKEN_FILE") == ""
	}
	return err
}
