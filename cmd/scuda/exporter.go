//go:build !client

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
	"runtime"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/ebpf"
	"scuda.dev/scuda/ebpf/exporter"
)

// exporterOptions are the options of `scuda exporter`.
type exporterOptions struct {
	listen    string
	libraries []string
	noSystem  bool
	keep      bool
	inherited int
	logFormat string
}

func newExporter() *cobra.Command {
	var o exporterOptions
	cmd := &cobra.Command{
		Use:   "exporter [flags]",
		Short: "Measure the driver's calls on this machine for Prometheus",
		Long: `Measure every call of the driver libraries on this machine, NVIDIA's and scuda's, by probes in the kernel,
and give histograms of their length to Prometheus at /metrics. Programs are not changed and need not be restarted.
Starts as root (or with CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN) and goes on without any capability once the probes
are attached. Needs Linux 5.15, better 6.6 or newer. /healthz says whether the probes can be read.`,
		Example: "  scuda exporter --listen 0.0.0.0:9835",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:9835", "serve on `HOST:PORT`")
	f.StringArrayVar(&o.libraries, "library", nil,
		"probe this `FILE`; may be given several times (default: scuda's libraries and the machine's)")
	f.BoolVar(&o.noSystem, "no-system", false,
		"leave system calls and time without a CPU out, which cost a little at each system call of the machine")
	f.BoolVar(&o.keep, "keep-capabilities", false, "do not drop capabilities once the probes are attached")
	f.StringVar(&o.logFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	f.IntVar(&o.inherited, "inherited", -1, "")
	_ = f.MarkHidden("inherited")
	withEnv(f, "log-format")
	f.Lookup("listen").Annotations = map[string][]string{"env": {"SCUDA_EXPORTER_LISTEN"}}
	f.Lookup("listen").Usage += " [$SCUDA_EXPORTER_LISTEN]"
	return cmd
}

func (o *exporterOptions) run(cmd *cobra.Command) error {
	format, err := config.ParseLogFormat(o.logFormat)
	if err != nil {
		return usage(fmt.Errorf("--log-format: %w", err))
	}
	log := slog.New(format.Handler(cmd.ErrOrStderr(), slog.LevelInfo))
	if o.inherited >= 0 {
		probes, err := ebpf.Inherit(o.inherited)
		if err != nil {
			return err
		}
		return o.serve(cmd.Context(), probes, log)
	}
	libraries := o.libraries
	if libraries == nil {
		libraries = allLibraries()
	}
	probes, err := ebpf.Attach(ebpf.Options{
		Libraries: libraries, OffCPU: !o.noSystem, SystemCalls: !o.noSystem, Logger: log,
	})
	if err != nil {
		return err
	}
	log.Info("probes attached", "functions", probes.Count(), "took", probes.Took(), "links", string(probes.Method()),
		"cost of a call", probes.Floor().Cost)
	if o.keep {
		return o.serve(cmd.Context(), probes, log)
	}
	fd, err := probes.Bequeath()
	if err != nil {
		return err
	}
	// From here on a signal ends this process, and the probes with it; one that came before would be forgotten.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	if cmd.Context().Err() != nil {
		return nil
	}
	err = execWithoutRights(append(os.Args, fmt.Sprintf("--inherited=%d", fd)))
	runtime.KeepAlive(probes) // the collector of garbage would close what is handed on
	return err
}

// serve answers Prometheus until it is interrupted.
func (o *exporterOptions) serve(ctx context.Context, probes *ebpf.Probes, log *slog.Logger) error {
	defer probes.Close()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	registry := prometheus.NewRegistry()
	if err := registry.Register(exporter.New(probes)); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics",
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := probes.Read(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	fmt.Printf("listening on %s\n", l.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		return err
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// execWithoutRights executes this program anew without any capability, now or later. Capabilities belong to threads,
// and the executing thread's are those of the new program, so no other thread matters.
func execWithoutRights(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		// the kernel knows no more; or without CAP_SETPCAP it takes none away
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			break
		}
		if err != nil {
			return fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return fmt.Errorf("executing scuda anew: %w", unix.Exec(self, args, os.Environ()))
}
