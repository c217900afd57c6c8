package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/bundle"
)

// newBundle makes the one file that is enough; releases are made with it.
func newBundle() *cobra.Command {
	var program string
	cmd := &cobra.Command{
		Use:    "bundle FILE",
		Short:  "Write this program with the client's libraries inside to a file",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which file? scuda bundle FILE"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			lib, err := libFolder()
			if err != nil {
				return err
			}
			if program == "" {
				if program, err = os.Executable(); err != nil {
					return err
				}
			}
			if err := os.MkdirAll(filepath.Dir(args[0]), 0o755); err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
			if err != nil {
				return err
			}
			return errors.Join(bundle.Write(f, program, lib), f.Close())
		},
	}
	cmd.Flags().StringVar(&program, "program", "", "`FILE` to put the libraries behind instead of this program")
	return cmd
}

// carried gives the folder with the libraries that this program carries.
func carried() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := bundle.Carried(self); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return bundle.Unpack(self, filepath.Join(cache, "scuda", "lib"))
}
