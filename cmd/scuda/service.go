//go:build !client

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/deploy/systemd"
)

// Where a service has what is its own.
const (
	unitFolder    = "/etc/systemd/system"
	serviceToken  = "/etc/scuda/token"
	packagedScuda = "/usr/bin/scuda" // as the units name it
)

func newService() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Serve as a service of this machine (systemd)",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var root string
	var now bool
	install := &cobra.Command{
		Use:   "install",
		Short: "Install the service, and a token for it",
		Long: `Write the unit scuda.service, which runs this program, and a token where there is none. It starts nothing by
itself, but with --now. What belongs to this machine alone goes into /etc/scuda/server.env, or into a file by
systemctl edit scuda; the unit is written anew each time.`,
		Example: "  sudo scuda service install --now",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if root != "" && now {
				return usage(errors.New("either --root or --now: an image starts nothing"))
			}
			folder, err := ownFolder()
			if err != nil {
				return err
			}
			self := filepath.Join(folder, "scuda")
			if !exists(self) { // that of the server's package lies among the libraries
				self = filepath.Join(folder, "../../bin/scuda")
			}
			if root == "" {
				if err := errors.Join(hasSystemd(), serviceCanRun(self)); err != nil {
					return err
				}
			}
			text, err := systemd.Units.ReadFile("scuda.service")
			if err != nil {
				return err
			}
			unit := filepath.Join(root, unitFolder, "scuda.service")
			if err := os.MkdirAll(filepath.Dir(unit), 0o755); err != nil {
				return asRoot(err)
			}
			if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), packagedScuda, self)), 0o644); err != nil {
				return asRoot(err)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "wrote %s\n", unit)
			token := filepath.Join(root, serviceToken)
			switch err := writeSecret(token, newSecret()); {
			case errors.Is(err, fs.ErrExist):
				fmt.Fprintf(out, "the token is that of %s\n", token)
			case err != nil:
				return asRoot(err)
			default:
				fmt.Fprintf(out, "made a token, %s\n", token)
			}
			if root == "" {
				if err := systemctl(cmd, "daemon-reload"); err != nil {
					return err
				}
			}
			if now {
				if err := systemctl(cmd, "enable", "--now", "scuda"); err != nil {
					return err
				}
				fmt.Fprintln(out, "started; journalctl -u scuda has its fingerprint")
			} else {
				fmt.Fprintln(out, "start it with: systemctl enable --now scuda")
			}
			host, _ := os.Hostname()
			fmt.Fprintf(out, "clients log in with: scuda login %s, and this token\n", host)
			return nil
		},
	}
	install.Flags().StringVar(&root, "root", "", "install below this `FOLDER` instead of /, for an image")
	install.Flags().BoolVar(&now, "now", false, "enable and start it as well")
	cmd.AddCommand(install)
	return cmd
}

var (
	errPlace   = errors.New("the service would not find this program")
	errSystemd = errors.New("systemd does not run here; for an image give --root FOLDER, elsewhere run scuda serve")
)

// hasSystemd says whether systemd is the machine's init system, as sd_booted does.
func hasSystemd() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return errSystemd
	}
	return nil
}

// serviceCanRun says whether the service, which sees neither homes nor temporary files, can run a program.
func serviceCanRun(path string) error {
	for _, hidden := range []string{"/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"} {
		if strings.HasPrefix(path, hidden) {
			return fmt.Errorf("%w: it sees nothing below %s; install scuda below /usr/local or /opt first", errPlace, hidden)
		}
	}
	return nil
}

// asRoot says what helps who is not root.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; run it as root: sudo scuda service install", err)
	}
	return err
}

func systemctl(cmd *cobra.Command, args ...string) error {
	p := exec.CommandContext(cmd.Context(), "systemctl", args...)
	p.Stdout, p.Stderr = cmd.ErrOrStderr(), cmd.ErrOrStderr()
	if err := p.Run(); err != nil {
		return fmt.Errorf("systemctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}
