package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/transport"
)

type versionFacts struct {
	Version     string `json:"version"`
	Protocol    int    `json:"protocol"`     // the newest version that this release speaks
	MinProtocol int    `json:"min_protocol"` // the oldest
	API         string `json:"api"`          // digest of what travels
	Go          string `json:"go"`
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this scuda",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionFacts{
				Version: release.Version(), Protocol: transport.Version, MinProtocol: transport.MinVersion, API: cuda.Digest,
				Go: runtime.Version(),
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// versionLine is what `scuda version` and `scuda --version` print.
func versionLine() string {
	return fmt.Sprintf("scuda %s, protocol %s, API description %.12s, %s\n", release.Version(), transport.Spoken,
		cuda.Digest, runtime.Version())
}
