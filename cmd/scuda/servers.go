package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
)

// savedFacts are what `scuda servers` tells of one.
type savedFacts struct {
	Name       string `json:"name"`
	Server     string `json:"server"`
	Used       bool   `json:"used"`       // by programs, as it is configured now
	Credential string `json:"credential"` // token, certificate, or none of one's own
	Safety     string `json:"safety"`     // how it has to prove itself: a fingerprint, plain, an authority's file, or -
}

// savedHelp explains what --json prints of a remembered server.
const savedHelp = `
  name        what the server is called here
  server      HOST:PORT
  used        whether programs use it, as everything is configured now
  credential  token, certificate, both or none; never the token itself
  safety      how the server has to prove itself: a fingerprint, plain (not at all), the file of an authority, or -`

// allFacts are what is remembered of servers.
func allFacts(servers []config.Saved) ([]savedFacts, error) {
	now, _, err := config.Configured()
	if err != nil {
		return nil, err
	}
	list := []savedFacts{}
	for _, s := range servers {
		known, err := config.Known(s.Address)
		switch {
		case err != nil:
			return nil, err
		case known != "":
		case s.CA != "":
			known = s.CA
		default:
			known = "-"
		}
		list = append(list, savedFacts{s.Name, s.Address, slices.Contains(now, s.Address), s.Credential(), known})
	}
	return list, nil
}

// noteOther says that the environment names other servers than those that were chosen.
func noteOther(w io.Writer, what string, chosen ...string) {
	if now, source, err := config.Configured(); err == nil && !slices.Equal(now, chosen) {
		fmt.Fprintf(w, "note: %s says %s, and goes before %s\n", source, config.Join(now), what)
	}
}

func newServers() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:        "servers",
		Short:      "List the remembered servers",
		Long:       "List the remembered servers. --json prints a list, and of each server:\n" + savedHelp,
		Args:       noArgs,
		SuggestFor: []string{"list", "ls", "hosts", "contexts"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, source, err := remembered()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return writeJSON(out, list)
			}
			if len(list) == 0 {
				fmt.Fprintln(out, "no server is remembered; scuda login HOST:PORT remembers one")
				return nil
			}
			t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "\tNAME\tSERVER\tCREDENTIAL\tKNOWN BY")
			for _, s := range list {
				mark := ""
				if s.Used {
					mark = "*"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", mark, s.Name, s.Server, s.Credential, s.Safety)
			}
			if err := t.Flush(); err != nil {
				return err
			}
			if source == "SCUDA_SERVER" {
				fmt.Fprintln(out, "note: SCUDA_SERVER goes before what scuda use chose")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// remembered are the remembered servers, and what says which of them is used.
func remembered() (list []savedFacts, source string, err error) {
	servers, err := config.Servers()
	if err != nil {
		return nil, "", err
	}
	if _, source, err = config.Configured(); err != nil {
		return nil, "", err
	}
	list, err = allFacts(servers)
	return list, source, err
}

func newUse() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "use NAME[,NAME...]",
		Short: "Let programs use another remembered server from now on",
		Long: `Let programs use another remembered server from now on, or several, of which they see the GPUs in this order.
--json prints what is remembered of it (of several a list):
` + savedHelp,
		Example:    "  scuda use gpu1\n  scuda use gpu1,gpu2",
		SuggestFor: []string{"switch", "select"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which server? scuda use NAME; scuda servers lists them"))
			}
			return nil
		},
		ValidArgsFunction: completeServer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := config.List(args[0]); errors.Is(err, config.ErrList) {
				return usage(err)
			}
			list, err := config.FindAll(args[0])
			if errors.Is(err, config.ErrNoSuch) {
				return usage(err)
			} else if err != nil {
				return err
			}
			var chosen []string
			for _, s := range list {
				chosen = append(chosen, s.Address)
			}
			if err := config.SetServers(chosen...); errors.Is(err, config.ErrList) {
				return usage(err)
			} else if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				f, err := allFacts(list)
				switch {
				case err != nil:
					return err
				case len(f) > 1:
					return writeJSON(out, f)
				}
				return writeJSON(out, f[0])
			}
			for i, s := range list {
				words := map[bool]string{true: "programs use", false: "         and"}[i == 0]
				fmt.Fprintf(out, "%s %s, %s\n", words, s.Name, s.Address)
			}
			noteOther(out, map[bool]string{true: "it", false: "them"}[len(list) == 1], chosen...)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newLogout() *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "logout [NAME]",
		Short: "Forget a server and the credential for it",
		Long: `Forget a server, without NAME the one that is used, and its credential. Its fingerprint stays known, so that
another server in its place is noticed. --json prints a list of what was forgotten, and of each server as it was:
` + savedHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && all {
				return usage(errors.New("one NAME at most, or --all; scuda servers lists them"))
			}
			return nil
		},
		ValidArgsFunction: completeServer,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := config.Servers()
			if err != nil {
				return err
			}
			if !all {
				var word string
				if len(args) == 1 {
					word = args[0]
				} else if word, _, err = config.Server(); err != nil {
					return err
				} else if word == "" {
					return config.ErrNoServer
				}
				s, err := config.Find(word)
				if errors.Is(err, config.ErrNoSuch) {
					return usage(err)
				} else if err != nil {
					return err
				}
				list = []config.Saved{*s}
			}
			var forgotten []savedFacts
			if asJSON {
				if forgotten, err = allFacts(list); err != nil {
					return err
				}
			}
			for _, s := range list {
				if err := config.Forget(&s); err != nil {
					return err
				}
				if !asJSON {
					fmt.Fprintf(cmd.OutOrStdout(), "forgot %s, %s\n", s.Name, s.Address)
				}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), forgotten)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&all, "all", false, "forget all servers")
	return cmd
}
