package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
)

// inImage is where an image has the client's libraries.
const inImage = "/usr/lib/scuda"

func newEnv() *cobra.Command {
	var address, tokenFile, of string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print what programs need in their environment",
		Long: `Print the environment in which programs use the server, as scuda run sets it: for a shell, a Dockerfile, a
Jupyter kernel or VS Code. No token is printed; programs read the remembered one.`,
		Example: `  eval "$(scuda env)"
  scuda env --for fish | source
  scuda env --for jupyter > ~/.local/share/jupyter/kernels/scuda/kernel.json
  scuda env --for vscode                # for settings.json
  scuda env --for dockerfile >> Dockerfile`,
		SuggestFor: []string{"export", "activate", "shell"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("for", of); err != nil {
				return err
			}
			before := os.Environ()
			env, err := clientEnv(before, address, tokenFile)
			if err != nil {
				return err
			}
			var names []string
			values := map[string]string{}
			for _, e := range env {
				name, value, _ := strings.Cut(e, "=")
				if !slices.Contains(before, e) || name == "LD_PRELOAD" || name == "LD_LIBRARY_PATH" || name == "SCUDA_SERVER" {
					names, values[name] = append(names, name), value
				}
			}
			slices.Sort(names)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), values)
			}
			return printEnv(cmd.OutOrStdout(), of, address, names, values)
		},
	}
	f := cmd.Flags()
	f.StringVar(&of, "for", "sh", "`WHAT` it is for: "+strings.Join(choices["for"], ", "))
	f.StringVar(&address, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	f.StringVar(&tokenFile, "token-file", "", "`FILE` with the token")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printEnv(out io.Writer, of, address string, names []string, values map[string]string) error {
	switch of {
	case "sh":
		for _, name := range names {
			fmt.Fprintf(out, "export %s=%s\n", name, quoted(values[name], `'\''`))
		}
	case "fish":
		for _, name := range names {
			fmt.Fprintf(out, "set -gx %s %s\n", name, quoted(values[name], `\'`))
		}
	case "jupyter":
		return writeJSON(out, map[string]any{
			"argv":         []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"},
			"display_name": "Python 3 (scuda)", "language": "python", "env": values,
		})
	case "vscode":
		return writeJSON(out, map[string]any{"terminal.integrated.env.linux": values})
	case "dockerfile":
		return printDockerfile(out, address)
	}
	return nil
}

// quoted writes a value for a shell, in which an apostrophe is written as given.
func quoted(s, apostrophe string) string { return "'" + strings.ReplaceAll(s, "'", apostrophe) + "'" }

// printDockerfile prints what an image needs, which has none of the user's settings.
func printDockerfile(out io.Writer, wish string) error {
	folder, err := libFolder()
	if err != nil {
		return err
	}
	var address string
	if wish != "" {
		address, err = config.Address(wish)
	} else {
		address, _, err = config.Server()
	}
	if err != nil {
		return err
	}
	known, err := config.Known(address)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `# docker build --build-context scuda=%s .
# docker run -v TOKENFILE:/run/secrets/scuda_token:ro IMAGE
COPY --from=scuda . %s/
ENV LD_PRELOAD=%[2]s/libscuda.so
ENV LD_LIBRARY_PATH=%[2]s
ENV SCUDA_SERVER=%s
ENV SCUDA_TOKEN_FILE=/run/secrets/scuda_token
`, folder, inImage, address)
	if strings.HasPrefix(known, "sha256:") {
		fmt.Fprintf(out, "ENV SCUDA_FINGERPRINT=%s\n", known)
	}
	return nil
}
