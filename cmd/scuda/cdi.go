package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/cdi"
)

// cdiFile is where Docker, Podman, containerd and CRI-O look.
const cdiFile = "/etc/cdi/scuda.json"

func newCDI() *cobra.Command {
	var address, tokenFile, name, out string
	cmd := &cobra.Command{
		Use:   "cdi",
		Short: "Write the file by which containers get the server's GPU",
		Long: `Write the file of the Container Device Interface by which containers get the server's GPU: the client's
libraries, SCUDA_SERVER, LD_PRELOAD, and the files that show who asks. It has no token in it: the token's file is
mounted, so it has to be there as long as containers run. Everybody who may start containers with the device may use it.

Docker takes such files from release 25 on (before 28.3 it wants features: {cdi: true} in daemon.json), Podman from 4.1.

` + exitHelp,
		Example: `  sudo scuda cdi --server gpu1.example.org --token-file /etc/scuda/token
  docker run --rm --device scuda.dev/gpu=all IMAGE nvidia-smi
  podman run --rm --device scuda.dev/gpu=all IMAGE nvidia-smi`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := cdiAccess(address, tokenFile)
			if err != nil {
				return err
			}
			spec := cdi.New(a.Device(name))
			if out == "-" {
				text, err := cdi.Append(nil, spec)
				if err != nil {
					return usage(err)
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			if err := spec.Check(); err != nil {
				return usage(err)
			}
			if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
				return err
			}
			if err := cdi.Write(out, spec); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s; use it with --device %s=%s\n", out, cdi.Kind, name)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&address, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	f.StringVar(&tokenFile, "token-file", "", "`FILE` with the token, which containers get [$SCUDA_TOKEN_FILE]")
	f.StringVar(&name, "name", "all", "`NAME` of the device")
	f.StringVarP(&out, "output", "o", cdiFile, "`FILE` to write; -: print it")
	return cmd
}

// cdiAccess is how containers get at the server.
func cdiAccess(address, tokenFile string) (*cdi.Access, error) {
	lib, err := libFolder()
	if err != nil {
		return nil, err
	}
	if address != "" {
		address, err = config.Address(address)
	} else if address, _, err = config.Server(); err == nil && address == "" {
		err = config.ErrNoServer
	}
	if err != nil {
		return nil, err
	}
	a := &cdi.Access{Server: address, Libraries: lib, TokenFile: tokenFile, CA: os.Getenv("SCUDA_CA"),
		Cert: os.Getenv("SCUDA_CERT"), Key: os.Getenv("SCUDA_KEY"), Fingerprint: os.Getenv("SCUDA_FINGERPRINT")}
	if a.TokenFile == "" {
		a.TokenFile = os.Getenv("SCUDA_TOKEN_FILE")
	}
	if a.TokenFile == "" && a.Cert == "" {
		return nil, usage(errors.New("containers have none of your settings: name the token's file with --token-file " +
			"(or a certificate with SCUDA_CERT and SCUDA_KEY)"))
	}
	for _, file := range []*string{&a.TokenFile, &a.CA, &a.Cert, &a.Key} {
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
		if _, err := os.Stat(*file); err != nil {
			return nil, err
		}
	}
	if a.Cert != "" && a.Key == "" {
		a.Key = strings.TrimSuffix(a.Cert, filepath.Ext(a.Cert)) + ".key"
	}
	if a.Fingerprint == "" && a.CA == "" {
		known, err := config.Known(address)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(known, "sha256:") {
			a.Fingerprint = known
		}
	}
	return a, nil
}
