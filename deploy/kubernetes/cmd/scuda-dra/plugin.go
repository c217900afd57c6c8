package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/deploy/kubernetes/node"
)

type pluginOptions struct {
	*common
	node, kubelet, cdi, libraries string
	refresh                       time.Duration
}

func newPlugin(c *common) *cobra.Command {
	o := pluginOptions{common: c}
	cmd := &cobra.Command{
		Use:   "kubelet-plugin",
		Short: "Make devices of this node's claims",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "this node's `NAME` in the cluster [$NODE_NAME]")
	f.StringVar(&o.kubelet, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `FOLDER`")
	f.StringVar(&o.cdi, "cdi-dir", "/var/run/cdi", "`FOLDER` in which the container engine looks for devices")
	f.StringVar(&o.libraries, "libraries", "/usr/lib/scuda", "`FOLDER` with scuda's client libraries")
	f.DurationVar(&o.refresh, "refresh", time.Minute, "how often it is looked whether a claim has a new credential")
	return cmd
}

func (o *pluginOptions) run(ctx context.Context) error {
	client, log, err := o.start()
	if err != nil {
		return err
	}
	if o.node == "" {
		return errors.New("--node-name is missing")
	}
	data := filepath.Join(o.kubelet, "plugins", names.Driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	lib, err := node.Install(o.libraries, data, version)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	if err := o.offer(ctx, registry, log); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p := &node.Plugin{Client: client, Namespace: o.namespace, Data: data, CDI: o.cdi, Lib: lib, Log: log, Fatal: stop}
	if err := p.Serve(ctx, o.node, o.kubelet, o.refresh); err != nil {
		return err
	}
	return context.Cause(ctx)
}
