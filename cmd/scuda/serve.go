package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport/rdma"
)

// serveFlags are the options that only `scuda -l` reads (token-file and log have a meaning for clients, too).
var serveFlags = []string{"gpu", "token-file", "insecure", "cache-dir", "max-sessions", "allow-nvml-set", "warm", "sim-memory", "transport", "rdma-device", "rdma-memory", "gpudirect", "drain", "log", "metrics", "pprof"}

type serveOptions struct {
	listen    string
	gpu       string
	tokenFile string
	insecure  bool
	cacheDir  string
	sessions  int
	settings  bool
	warm      int
	simMemory byteSize
	transport string
	rdma      string
	rdmaBytes byteSize
	direct    string
	drain     time.Duration
	log       string
	metrics   string
	profiles  bool
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVarP(&o.listen, "listen", "l", "", "serve the GPUs of this machine on `ADDR` (HOST:PORT; port 0 picks one); without ADDR on "+onLoopback)
	f.Lookup("listen").NoOptDefVal = onLoopback
	f.StringVar(&o.gpu, "gpu", "auto", "`KIND` of GPUs to serve: real, sim or auto (auto: the real ones where there is a driver, else simulated); sim:4,memory=2GiB,preset=small says what is simulated (docs/sim.md)")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token that clients must present (serving), or that is presented")
	f.BoolVar(&o.insecure, "insecure", false, "serve other machines without a token")
	f.StringVar(&o.cacheDir, "cache-dir", "", "`FOLDER` for uploaded modules, or none")
	f.IntVar(&o.sessions, "max-sessions", 0, "`N` clients at once, 0: no limit")
	f.BoolVar(&o.settings, "allow-nvml-set", false, "let clients change settings of the GPUs through NVML")
	f.IntVar(&o.warm, "warm", 1, "`N` worker processes kept ready")
	f.Var(&o.simMemory, "sim-memory", "`SIZE` of the simulated GPU's memory, such as 4GiB (0: half of this machine's, 8GiB at most)")
	f.StringVar(&o.transport, "transport", "auto", "how big copies travel: auto (by RDMA where client and server have it), rdma (no server without) or tcp")
	f.StringVar(&o.rdma, "rdma-device", "", "`DEVICE`[:PORT[:GIDINDEX]] for RDMA instead of the one with the address that clients connect to")
	f.Var(&o.rdmaBytes, "rdma-memory", "`SIZE` of the pinned memory of a session that uses RDMA, 12MiB to 256MiB (0: 96MiB)")
	f.StringVar(&o.direct, "gpudirect", "auto", "whether RDMA reads and writes the GPU's memory: auto (where a self-test finds it right and not slower), always (wherever it works) or never")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "`TIME` that clients may go on after SIGTERM")
	f.StringVar(&o.log, "log", "info", "`LEVEL` debug, info, warn or error, and optionally ,file=PATH")
	f.StringVar(&o.metrics, "metrics", "", "offer metrics for Prometheus on `ADDR` (HOST:PORT; 0 picks one): /metrics, /healthz, /readyz; without a token")
	f.BoolVar(&o.profiles, "pprof", false, "offer Go profiles of the server there as well, on /debug/pprof/")
	withEnv(f, serveFlags...)
}

func (o *serveOptions) run(cmd *cobra.Command) error {
	kind, spec, _ := strings.Cut(o.gpu, ":")
	if kind != "real" && kind != "sim" && kind != "auto" || kind != "sim" && o.gpu != kind {
		return usage(fmt.Errorf("--gpu %s: real, sim, sim:SETTINGS or auto", o.gpu))
	}
	if _, err := sim.ParseSpec(sim.Config{}, spec); err != nil {
		return usage(fmt.Errorf("--gpu %s: %w", o.gpu, err))
	}
	if o.sessions < 0 || o.warm < 0 {
		return usage(errors.New("--max-sessions and --warm cannot be negative"))
	}
	if err := o.checkRDMA(); err != nil {
		return usage(err)
	}
	direct, err := executor.ParseGPUDirect(o.direct)
	if err != nil {
		return usage(fmt.Errorf("--gpudirect: %w", err))
	}
	var token []byte
	if o.tokenFile != "" {
		var err error
		if token, err = server.ReadToken(o.tokenFile); err != nil {
			return usage(err)
		}
	}
	addr := completePort(o.listen)
	if err := server.CheckAddress(addr, token, o.insecure); err != nil {
		return usage(err)
	}
	log, err := openLog(cmd.ErrOrStderr(), o.log)
	if err != nil {
		return usage(err)
	}
	if o.profiles && o.metrics == "" {
		return usage(errors.New("--pprof needs --metrics ADDR"))
	}
	drain := o.drain
	if drain == 0 {
		drain = -1 // the server's word for not at all
	}
	return server.Serve(cmd.Context(), server.Config{
		Addr:         addr,
		Token:        token,
		Insecure:     o.insecure,
		GPU:          kind,
		Sim:          spec,
		NVMLSettings: o.settings,
		SimMemory:    uint64(o.simMemory),
		CacheDir:     o.cacheDir,
		Warm:         o.warm,
		MaxSessions:  o.sessions,
		NoRDMA:       o.transport == "tcp",
		RDMADevice:   o.rdma,
		RDMAMemory:   uint64(o.rdmaBytes),
		GPUDirect:    direct,
		Drain:        drain,
		Metrics:      o.metrics,
		Profiles:     o.profiles,
		Log:          log,
		Ready: func(s server.Status) {
			fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", s.Addr)
			if s.Metrics != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "metrics on http://%s/metrics\n", s.Metrics)
			}
			for i, d := range s.Devices {
				fmt.Fprintf(cmd.OutOrStdout(), "GPU %d: %s, %s (%s)\n", i, d.Name, byteSize(d.TotalMem), s.GPU)
			}
		},
	})
}

// checkRDMA checks the options of RDMA.
func (o *serveOptions) checkRDMA() error {
	switch o.transport {
	case "auto", "tcp":
	case "rdma":
		if _, err := rdma.Choose(o.rdma, netip.Addr{}, netip.Addr{}); err != nil {
			return fmt.Errorf("--transport rdma: %w", err)
		}
	default:
		return fmt.Errorf("--transport %s: auto, rdma or tcp", o.transport)
	}
	if b := o.rdmaBytes; b != 0 && (b < 12<<20 || b > 256<<20) {
		return fmt.Errorf("--rdma-memory %v: 12 MiB to 256 MiB", b)
	}
	return nil
}

// completePort lets ":PORT" mean every interface, as it does for net.Listen.
func completePort(addr string) string {
	if strings.HasPrefix(addr, ":") {
		return "[::]" + addr
	}
	return addr
}

func openLog(stderr io.Writer, setting string) (*slog.Logger, error) {
	level, file, err := config.ParseLog(setting)
	if err != nil {
		return nil, fmt.Errorf("--log %s: %w", setting, err)
	}
	w := stderr
	if file != "" {
		if w, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return nil, fmt.Errorf("--log: %w", err)
		}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), nil
}

// byteSize is a number of bytes written with a binary unit.
type byteSize uint64

var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}

func (b byteSize) String() string {
	v, i := float64(b), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) + " " + units[i]
}

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) Set(s string) error {
	digits := strings.TrimRight(s, "BKMGTkmgtib ")
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return errors.New("write a whole number and B, KiB, MiB, GiB or TiB")
	}
	unit := strings.TrimSpace(s[len(digits):])
	for i, u := range units {
		if strings.EqualFold(unit, u) || i > 0 && strings.EqualFold(unit, u[:1]) || i == 0 && unit == "" {
			if shift := 10 * i; v<<shift>>shift == v {
				*b = byteSize(v << shift)
				return nil
			}
			return errors.New("too large")
		}
	}
	return fmt.Errorf("no unit %q; B, KiB, MiB, GiB or TiB", unit)
}
