package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/transport/certificate"
)

// tokenFacts are what `scuda token create` tells.
type tokenFacts struct {
	Token  string `json:"token,omitempty"` // where no file has it
	File   string `json:"file,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Line   string `json:"tenants_line,omitempty"`
}

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make tokens, by which clients show who they are",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var out, tenant string
	var asJSON bool
	create := &cobra.Command{
		Use:   "create",
		Short: "Make a token that nobody guesses",
		Long: `Make a token of 256 random bits, and print it or write it to a file that nobody else can read. With --tenant
the line for the server's tenants file is printed on standard error, which does not have the token itself.

--json prints on standard output:

  token         the token, without --output
  file          the file that has it, with --output; then the token is not printed
  tenant        the tenant's name, with --tenant
  tenants_line  the line for the server's tenants file, with --tenant`,
		Example: "  scuda token create -o /etc/scuda/token\n  scuda token create --tenant alice -o alice.token 2>> tenants",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tenant != "" {
				if err := certificate.CheckTenant(tenant); err != nil {
					return usage(err)
				}
			}
			f := tokenFacts{Tenant: tenant}
			token := newSecret()
			if out == "" {
				f.Token = token
			} else if err := writeSecret(out, token); errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s is there already, and stays as it is", out)
			} else if err != nil {
				return err
			} else if f.File, err = filepath.Abs(out); err != nil {
				return err
			}
			if tenant != "" {
				sum := sha256.Sum256([]byte(token))
				f.Line = fmt.Sprintf("%s token-sha256=%s", tenant, hex.EncodeToString(sum[:]))
			}
			switch {
			case asJSON:
				return writeJSON(cmd.OutOrStdout(), f)
			case f.Token != "":
				fmt.Fprintln(cmd.OutOrStdout(), f.Token)
			}
			if f.Line != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), f.Line)
			}
			return nil
		},
	}
	create.Flags().StringVarP(&out, "output", "o", "", "write it to this `FILE`, which must not be there yet")
	create.Flags().StringVar(&tenant, "tenant", "", "print the line of the tenant `NAME` as well")
	create.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(create)
	return cmd
}

func newSecret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// writeSecret makes a file that nobody else can read.
func writeSecret(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, text)
	return errors.Join(err, f.Close())
}
