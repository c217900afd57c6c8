package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/transport"
)

// upgradeFacts are what `scuda upgrade` tells.
type upgradeFacts struct {
	Client    string `json:"client_version"`
	Server    string `json:"server,omitempty"`
	Release   string `json:"server_version,omitempty"`
	Error     string `json:"error,omitempty"` // why the server's is not known
	Same      bool   `json:"same"`
	Installed string `json:"installed"` // by a package, an archive, or built
	How       string `json:"how"`
}

func newUpgrade() *cobra.Command {
	var address, tokenFile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Say whether client and server are of one release, and how to get another",
		Long: `Compare this release with the server's, and say how the one here was installed and is replaced. It changes
nothing.`,
		SuggestFor: []string{"update"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := &upgradeFacts{Client: release.Version()}
			f.Installed, f.How = installed(cmd.Context())
			if address == "" {
				var err error
				if address, _, err = config.Server(); err != nil {
					return err
				}
			}
			if f.Server = address; address != "" {
				c, w, err := ask(cmd.Context(), address, tokenFile, transport.KindInfo)
				if err != nil {
					f.Error = err.Error()
				} else {
					c.Close()
					f.Release, f.Same = w.Version, w.Version == f.Client
				}
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return writeJSON(out, f)
			}
			fmt.Fprintf(out, "client   scuda %s, %s\n", f.Client, f.Installed)
			switch {
			case f.Server == "":
				fmt.Fprintln(out, "server   none is configured")
			case f.Error != "":
				fmt.Fprintln(out, "server   unknown:", f.Error)
			case f.Same:
				fmt.Fprintf(out, "server   scuda %s on %s: the same release\n", f.Release, f.Server)
			default:
				fmt.Fprintf(out, "server   scuda %s on %s: another release; the newer one is better on both machines\n", f.Release,
					f.Server)
			}
			fmt.Fprintln(out, "upgrade ", f.How)
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "server", "", "compare with this server (`HOST:PORT` or name)")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the token")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// installed says how this program came here, and how it is replaced.
func installed(ctx context.Context) (how, upgrade string) {
	folder, err := ownFolder()
	if err != nil {
		return "from an unknown place", err.Error()
	}
	self := filepath.Join(folder, "scuda")
	switch {
	case exec.CommandContext(ctx, "dpkg-query", "-S", self).Run() == nil:
		return "installed by a Debian package",
			"apt install ./scuda-client_VERSION_ARCH.deb of the newer release, and on a server its scuda-server, too"
	case exec.CommandContext(ctx, "rpm", "-qf", self).Run() == nil:
		return "installed by an RPM package",
			"dnf install ./scuda-client-VERSION.ARCH.rpm of the newer release, and on a server its scuda-server, too"
	case exists(filepath.Join(folder, "lib", "libscuda.so")):
		return "built in " + folder, "git pull && make build"
	}
	return "unpacked in " + folder, "unpack the newer release's archive over it, while no program uses it"
}
