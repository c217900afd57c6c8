package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport/certificate"
)

func newCA() *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Make certificates for servers and clients",
		Long: `A private certificate authority for people who have none. It is a folder; who has its key makes tenants.

  scuda ca init                        # once
  scuda ca issue --server gpu1.lan     # for a server that clients reach by this name
  scuda ca issue alice                 # for a client: the tenant alice
  cd ~/.config/scuda/ca                # where the files are
  scuda serve 0.0.0.0 --tls-cert gpu1.lan.crt --client-ca ca.crt
  scuda login gpu1.lan --ca ca.crt --cert alice.crt

` + exitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&folder, "folder", "",
		"the authority's `FOLDER` (default: ca in the settings' folder)")
	where := func() (string, error) {
		if folder != "" {
			return folder, nil
		}
		host, err := config.HostFile()
		return filepath.Join(filepath.Dir(host), "ca"), err
	}
	begin := &cobra.Command{
		Use: "init", Short: "Make the authority", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := where()
			if err != nil {
				return err
			}
			if err := certificate.NewAuthority(folder); certificate.IsExist(err) {
				return fmt.Errorf("there is an authority in %s already; it stays as it is", folder)
			} else if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "made %s; keep %s to yourself\n",
				filepath.Join(folder, certificate.AuthorityFile), filepath.Join(folder, certificate.AuthorityKeyFile))
			return nil
		},
	}
	var server bool
	issue := &cobra.Command{
		Use:   "issue NAME",
		Short: "Make a certificate and its key: for the client NAME, or with --server for the server NAME",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(fmt.Errorf("one NAME, not %q: scuda ca issue NAME", args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			folder, err := where()
			if err != nil {
				return err
			}
			a, err := certificate.OpenAuthority(folder)
			if err != nil {
				return fmt.Errorf("%w; make an authority with: scuda ca init", err)
			}
			certFile, keyFile, err := a.Issue(args[0], server)
			if certificate.IsExist(err) {
				return fmt.Errorf("%s has a certificate or a key in %s already; remove both for others", args[0], folder)
			} else if err != nil {
				return usage(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "made %s and %s\n", certFile, keyFile)
			return nil
		},
	}
	issue.Flags().BoolVar(&server, "server", false, "for a server that clients reach by NAME, a host name or an address")
	cmd.AddCommand(begin, issue)
	return cmd
}
