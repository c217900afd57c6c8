// Command scuda-dra gives out GPUs of scuda's servers in a Kubernetes cluster, by dynamic resource allocation. It has
// two parts: `scuda-dra controller` runs once in a cluster, `scuda-dra kubelet-plugin` on each node. See
// docs/tutorials/kubernetes.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(run()) }

func run() (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "scuda-dra:", err)
		return 1
	}
	return 0
}

// common are the options of both parts.
type common struct {
	kubeconfig, namespace, metrics string
	qps                            float32
}

func newRoot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scuda-dra", Short: "GPUs of scuda's servers for Kubernetes", Version: version,
		SilenceUsage: true, SilenceErrors: true,
	}
	var o common
	f := cmd.PersistentFlags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` with the cluster and who asks it; default: as a pod of it")
	f.StringVar(&o.namespace, "namespace", os.Getenv("NAMESPACE"),
		"the driver's own `NAMESPACE`, for its secrets [$NAMESPACE]")
	f.StringVar(&o.metrics, "metrics", "", "`HOST:PORT` for /metrics and /healthz; default: none")
	f.Float32Var(&o.qps, "kube-api-qps", 50, "questions a second to the cluster, at most")
	cmd.AddCommand(newController(&o), newPlugin(&o))
	return cmd
}

// start gives what both parts need: a client of the cluster, and the log.
func (o *common) start() (kubernetes.Interface, *slog.Logger, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if o.namespace == "" {
		return nil, nil, errors.New("--namespace is missing: the one in which this runs")
	}
	var c *rest.Config
	var err error
	if o.kubeconfig != "" {
		c, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	} else {
		c, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, nil, err
	}
	c.QPS, c.Burst, c.UserAgent = o.qps, int(2*o.qps), "scuda-dra/"+version
	client, err := kubernetes.NewForConfig(c)
	return client, log, err
}

// offer answers those who ask for metrics, until the context ends.
func (o *common) offer(ctx context.Context, from *prometheus.Registry, log *slog.Logger) error {
	if o.metrics == "" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics", "error", err)
		}
	}()
	return nil
}
