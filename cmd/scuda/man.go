//go:build !client

package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"scuda.dev/scuda/internal/release"
)

// newMan writes the man pages that packages bring; people read them with man(1).
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write the man pages into a folder",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which folder? scuda man FOLDER"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			cmd.Root().DisableAutoGenTag = true
			// The date is that of SOURCE_DATE_EPOCH, which dist.sh sets: the same build gives the same bytes.
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{
				Section: "1", Source: "scuda " + release.Version(), Manual: "scuda",
			}, args[0])
		},
	}
}
