package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"scuda.dev/scuda/deploy/kubernetes/claims"
	"scuda.dev/scuda/deploy/kubernetes/fleet"
	"scuda.dev/scuda/deploy/kubernetes/names"
)

type controllerOptions struct {
	*common
	servers, cluster string
	alone            bool
	poll, lasts      time.Duration
	graces           fleet.Graces
}

const (
	publishing  = time.Second
	configEvery = 10 * time.Second
)

func newController(c *common) *cobra.Command {
	o := controllerOptions{common: c}
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Publish the servers' GPUs, and give claims their leases",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.servers, "servers", "/etc/scuda/servers.yaml",
		"`FILE` that names the servers; it is read again when it changes")
	f.StringVar(&o.cluster, "cluster", "", "`NAME` of this cluster, where several have leases of one server; "+
		"default: the UID of the namespace kube-system")
	f.BoolVar(&o.alone, "alone", false, "no other controller runs: do not elect a leader")
	f.DurationVar(&o.poll, "poll", 2*time.Second, "how often each server is asked")
	f.DurationVar(&o.lasts, "lease", 30*24*time.Hour, "how long a lease lasts at most; a pod that is older loses its GPU")
	f.DurationVar(&o.graces.Down, "down-after", 15*time.Second,
		"a server that has not answered for so long gets no more pods")
	f.DurationVar(&o.graces.Evict, "evict-after", time.Minute, "after so long its pods are sent away")
	return cmd
}

func (o *controllerOptions) run(ctx context.Context) error {
	client, log, err := o.start()
	if err != nil {
		return err
	}
	if _, err := fleet.ReadConfig(o.servers); err != nil { // before anybody waits to be the leader
		return err
	}
	if o.cluster == "" {
		ns, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("this cluster has to have a name (--cluster): %w", err)
		}
		o.cluster = string(ns.UID)
	}
	if o.alone {
		return o.lead(ctx, client, log)
	}
	who, err := os.Hostname()
	if err != nil {
		return err
	}
	return claims.Elect(ctx, client, o.namespace, fmt.Sprintf("%s-%d", who, os.Getpid()),
		func(ctx context.Context) error { return o.lead(ctx, client, log) })
}

// lead does the work until the context ends.
func (o *controllerOptions) lead(ctx context.Context, client kubernetes.Interface, log *slog.Logger) error {
	config, err := fleet.ReadConfig(o.servers)
	if err != nil {
		return err
	}
	seed, err := fleet.ReadSeed(ctx, client)
	if err != nil {
		return fmt.Errorf("what is published: %w", err)
	}
	var c *claims.Controller
	f := fleet.New(fleet.Options{Cluster: o.cluster, Every: o.poll, Graces: o.graces, Log: log,
		Changed: func(server string) { c.Look(server) }})
	registry := prometheus.NewRegistry()
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
	c, err = claims.New(claims.Options{Client: client, Fleet: f, Namespace: o.namespace, Cluster: o.cluster,
		Lasts: o.lasts, Events: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: names.Driver}),
		Metrics: claims.NewMetrics(registry, f), Log: log})
	if err != nil {
		return err
	}
	if err := o.offer(ctx, registry, log); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	f.Apply(ctx, config, seed)
	defer f.Wait()
	defer stop()
	go o.reread(ctx, f, log)
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	err = f.Publish(ctx, client, log, publishing)
	stop()
	<-ended
	return err
}

// reread brings changes of the file of servers to the fleet.
func (o *controllerOptions) reread(ctx context.Context, f *fleet.Fleet, log *slog.Logger) {
	tick := time.NewTicker(configEvery)
	defer tick.Stop()
	last, _ := os.ReadFile(o.servers)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		text, err := os.ReadFile(o.servers)
		if err != nil || bytes.Equal(text, last) {
			continue
		}
		last = text
		config, err := fleet.ParseConfig(text)
		if err != nil {
			log.Error("the list of servers is not taken over", "error", err)
			continue
		}
		log.Info("the list of servers has changed", "servers", len(config.Servers))
		f.Apply(ctx, config, nil)
	}
}
