package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport"
)

// adminHelp says whom the verbs of an administrator ask, and what others may.
const adminHelp = `
On the machine of a server, its user and root ask that server over its admin socket. Elsewhere the command asks the
server that programs use (scuda login, SCUDA_SERVER), or that of --server. There a tenant sees and ends what is its own,
and a lease's credential what is of that lease; an administrator's tenant (role=admin in the server's tenants file) may
do everything.
`

// adminFlag gives a verb the options that say which server it asks.
func adminFlag(cmd *cobra.Command) {
	cmd.Flags().String("admin", admin.Auto,
		"`SOCKET` of the server, which its log names (auto: that of the one server of this machine)")
	cmd.Flags().String("server", "", "ask this server (`HOST:PORT` or name) over the network")
	withEnv(cmd.Flags(), "admin")
}

// administer gives a client of the server's admin interface: of the server that is named, else of that of this machine,
// else of the one that programs use.
func administer(cmd *cobra.Command) (*admin.Client, error) {
	c, servers, err := administered(cmd)
	switch {
	case err != nil || c != nil:
		return c, err
	case len(servers) > 1:
		return nil, usage(fmt.Errorf("%w (%s), and this takes one: name it with --server", config.ErrSeveral,
			config.Join(servers)))
	}
	return overNetwork(servers[0])
}

// administered gives the client of this machine's server, or the servers that are to be asked over the network.
func administered(cmd *cobra.Command) (*admin.Client, []string, error) {
	if err := applyEnv(cmd.Flags()); err != nil {
		return nil, nil, err
	}
	path, server := cmd.Flag("admin").Value.String(), cmd.Flag("server").Value.String()
	if server != "" {
		if cmd.Flag("admin").Changed {
			return nil, nil, usage(errors.New("either --server or --admin"))
		}
		servers, _, err := serversAsked(server)
		return nil, servers, err
	}
	c, err := admin.Dial(cmd.Context(), path)
	if path != admin.Auto || !errors.Is(err, admin.ErrNoServer) && !errors.Is(err, admin.ErrForbidden) {
		return c, nil, adminError(err)
	}
	servers, _, wrong := serversAsked("")
	if errors.Is(wrong, config.ErrNoServer) {
		wrong = adminError(fmt.Errorf("%w; for a server elsewhere: scuda login HOST:PORT, or --server HOST:PORT", err))
	}
	return nil, servers, wrong
}

// askAdmins asks the servers that administer would ask, and all of them where that are several.
func askAdmins[T any](cmd *cobra.Command, ask func(*admin.Client) (T, error)) ([]asked[T], error) {
	c, servers, err := administered(cmd)
	if err != nil {
		return nil, err
	}
	if c != nil {
		defer c.Close()
		answer, err := ask(c)
		return []asked[T]{{answer: answer, err: adminError(err)}}, nil
	}
	return askEach(servers, func(server string) (answer T, err error) {
		c, err := overNetwork(server)
		if err != nil {
			return answer, err
		}
		defer c.Close()
		answer, err = ask(c)
		return answer, adminError(err)
	}), nil
}

// overNetwork gives a client of a server's admin interface over its port.
func overNetwork(server string) (*admin.Client, error) {
	to, err := target(server, "")
	if err != nil {
		return nil, err
	}
	c, err := admin.Over(to, "")
	return c, adminError(err)
}

// adminError gives an error its exit code.
func adminError(err error) error {
	switch {
	case errors.As(err, new(*transport.Error)):
		return serverError(err)
	case errors.Is(err, admin.ErrNoServer):
		return &exitError{exitUnreachable, err}
	case errors.Is(err, admin.ErrForbidden), errors.Is(err, admin.ErrShutdown):
		return &exitError{exitRefused, err}
	case errors.Is(err, admin.ErrSeveral), errors.Is(err, admin.ErrSwitched), errors.Is(err, admin.ErrAmbiguous),
		errors.Is(err, admin.ErrAlike), errors.Is(err, lease.ErrTerms):
		return usage(err)
	}
	return err
}
