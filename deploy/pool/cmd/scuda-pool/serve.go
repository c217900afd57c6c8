package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/pool/agent"
	"scuda.dev/scuda/deploy/pool/etcd"
	"scuda.dev/scuda/deploy/pool/metrics"
	"scuda.dev/scuda/deploy/pool/store"
	"scuda.dev/scuda/server/admin"
)

// How soon a server that is gone is out of the pool: 15 s at most, whatever has died.
const (
	agentTTL   = 10 * time.Second // of its agent
	agentGrace = 5 * time.Second  // of the server
	agentEvery = time.Second
)

// announceOptions say which servers are announced, and how they are asked.
type announceOptions struct {
	servers           []string
	admin, token      string
	every, grace, ttl time.Duration
	metrics           string
}

func (o *announceOptions) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.servers, "server", nil,
		"announce the server at `HOST:PORT`, as programs reach it; it may be said several times")
	f.StringVar(&o.admin, "admin", "", "ask the server by its admin `SOCKET` (auto: the one of this machine) instead of "+
		"over its port")
	f.StringVar(&o.token, "token-file", "", "`FILE` with the token of a tenant with role=admin [$SCUDA_TOKEN_FILE]")
	f.DurationVar(&o.every, "every", agentEvery, "`TIME` between two looks at a server")
	f.DurationVar(&o.grace, "grace", agentGrace, "a server that is silent for this `TIME` is taken out")
	f.DurationVar(&o.ttl, "ttl", agentTTL, "a server is taken out when its announcer is gone for this `TIME`")
	f.StringVar(&o.metrics, "metrics", "",
		"offer metrics for Prometheus on `ADDR` (HOST:PORT; 0 picks one): /metrics, /healthz; without a token")
}

func (o *announceOptions) check() (err error) {
	for i, s := range o.servers {
		host, port, err := net.SplitHostPort(s)
		ip := net.ParseIP(host)
		if err != nil || host == "" || port == "" || ip != nil && ip.IsUnspecified() || !utf8.ValidString(s) {
			return usage(fmt.Errorf("--server: %.60q is not HOST:PORT, as programs reach the server", s))
		}
		if slices.Contains(o.servers[:i], s) {
			return usage(fmt.Errorf("--server: %s is said twice", s))
		}
		if i > 0 && o.admin != "" {
			return usage(errors.New("--admin goes with one --server"))
		}
	}
	if o.metrics, err = config.ParseMetrics(o.metrics); err != nil {
		return usage(fmt.Errorf("--metrics: %w", err))
	}
	if o.every <= 0 || o.grace <= 0 || o.ttl < 2*time.Second || o.ttl > 15*time.Second || o.grace > 10*time.Second {
		return usage(errors.New("--every and --grace are more than nothing, --grace is 10s at most, and --ttl 2s to 15s"))
	}
	return nil
}

// run announces the servers, and offers the metrics, until the context ends.
func (o *announceOptions) run(ctx context.Context, p *store.Pool, out io.Writer) error {
	log := logger()
	agents, states := []*agent.Agent{}, map[string]metrics.Agent{}
	for _, address := range o.servers {
		a := &agent.Agent{Pool: p, Address: address, Every: o.every, Grace: o.grace, TTL: o.ttl, Log: log,
			Dial: func(ctx context.Context) (agent.Admin, error) {
				if o.admin != "" {
					return admin.Dial(ctx, o.admin)
				}
				return dial(address, o.token, "")
			}}
		agents, states[address] = append(agents, a), a
	}
	if o.metrics != "" {
		port, err := metrics.Open(ctx, o.metrics, metrics.Handler(metrics.NewRegistry(metrics.New(p.See, states), version)))
		if err != nil {
			return err
		}
		defer port.Close()
		fmt.Fprintf(out, "metrics on http://%s/metrics\n", port.Addr())
	}
	var all sync.WaitGroup
	for _, a := range agents {
		all.Go(func() { a.Run(ctx) })
	}
	<-ctx.Done()
	all.Wait()
	return nil
}

// dial gives a client of a server's admin interface over its port. fingerprint is what the pool says of it.
func dial(address, tokenFile, fingerprint string) (*admin.Client, error) {
	to, err := config.Told(address, tokenFile, fingerprint)
	if err != nil {
		return nil, err
	}
	return admin.Over(to, "scuda-pool")
}

func newAnnounce() *cobra.Command {
	var o announceOptions
	var e etcdOptions
	cmd := &cobra.Command{
		Use:   "announce --server HOST:PORT... [flags]",
		Short: "Have servers be of the pool, for as long as this runs",
		Long: `Ask servers again and again what GPUs and leases they have, and write that into the pool's etcd. It runs beside
a server (--admin auto), or anywhere with a token of an administrator of the servers (scuda login, --token-file). A
server that does not answer is taken out of the pool, and so it is when this ends or dies. --metrics says to Prometheus
how the pool is, and whether these servers answer.`,
		Example: "  scuda-pool announce --server gpu1.example.org:14833 --admin auto",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.servers) == 0 {
				return usage(errors.New("no server given: --server HOST:PORT"))
			}
			if err := o.check(); err != nil {
				return err
			}
			p, err := e.open()
			if err != nil {
				return err
			}
			defer p.Close()
			return o.run(cmd.Context(), p, cmd.OutOrStdout())
		},
	}
	cmd.Flags().SortFlags = false
	o.flags(cmd.Flags())
	e.flags(cmd.Flags())
	return cmd
}

func newServe() *cobra.Command {
	var o announceOptions
	var e etcd.Options
	cmd := &cobra.Command{
		Use:   "serve --data FOLDER [flags]",
		Short: "Run the pool's etcd, and announce servers",
		Long: `Run an etcd for a pool that has none, with its state in a folder. Programs of this machine and user reach it by
a socket there; with --listen programs elsewhere reach it by TLS, and show a certificate of the authority. With --server
it announces servers as well, as scuda-pool announce does. --metrics says to Prometheus how the pool is.`,
		Example: "  scuda-pool serve --data /var/lib/scuda-pool --server gpu1.example.org:14833 --admin auto \\\n" +
			"    --listen 0.0.0.0:2379 --cert gpu1.crt --key gpu1.key --ca ca.crt",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.Folder == "" {
				return usage(errors.New("no folder given for the state: --data FOLDER"))
			}
			if err := o.check(); err != nil {
				return err
			}
			return serve(cmd.Context(), &e, &o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&e.Folder, "data", "", "`FOLDER` for etcd's state, and for its socket etcd.sock")
	f.StringVar(&e.Listen, "listen", "", "`HOST:PORT` for programs elsewhere, by TLS; needs the next three")
	f.StringVar(&e.Cert, "cert", "", "`FILE` with the certificate that etcd shows")
	f.StringVar(&e.Key, "key", "", "`FILE` with its key")
	f.StringVar(&e.CA, "ca", "", "`FILE` with the authorities of certificates, of programs and of etcd's own")
	o.flags(f)
	return cmd
}

func serve(ctx context.Context, e *etcd.Options, o *announceOptions, out io.Writer) error {
	s, err := etcd.Start(ctx, *e)
	if err != nil {
		return err
	}
	defer s.Close()
	logger().Info("the pool is open", "etcd", s.Endpoint, "listen", e.Listen)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ended chan struct{}
	var failed error
	if len(o.servers) > 0 || o.metrics != "" {
		// By the socket, as the certificate need not have the address it listens at, such as 0.0.0.0.
		p, err := store.Open(store.Options{Endpoints: []string{s.Endpoint}})
		if err != nil {
			return err
		}
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			failed = o.run(ctx, p, out)
		}()
		defer p.Close()
		defer func() { cancel(); <-ended }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.Failed():
		return fmt.Errorf("etcd has ended: %w", err)
	case <-ended:
		return failed
	}
}
