//go:build !client

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/mps"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport/rdma"
)

// serveFlags are the options of `scuda serve`, beside -l (token-file and log have a meaning for clients, too).
var serveFlags = append([]string{
	"config", "gpu", "token-file", "insecure", "cache-dir", "cache-size", "share-images", "max-sessions",
	"max-sessions-per-client", "max-queue", "max-away", "max-vram-kept", "turns", "mps", "max-nvml-sessions",
	"usage-log", "isolation", "allow-nvml-set", "warm", "sim-memory", "transport",
	"rdma-device", "rdma-memory", "rdma-fabric", "gpudirect", "drain", "grace", "log", "log-format", "metrics", "admin",
	"pprof", "fabric", "nccl", "peers", "tls", "tls-cert", "tls-key", "client-ca", "tenants", "state-dir", "spawner",
	"profiles",
}, append(limitNames(), workerFlags...)...)

func limitNames() (names []string) {
	for _, l := range config.LimitTable {
		names = append(names, l.Name)
	}
	return names
}

// limitValue is an option that is one of the limits.
type limitValue struct {
	of *config.Limit
	to *config.Limits
}

func (v limitValue) String() string {
	if v.of == nil { // pflag asks a zero value for its text
		return ""
	}
	return v.of.Text(v.to)
}

func (v limitValue) Set(s string) error { return v.of.Set(v.to, s) }
func (v limitValue) Type() string       { return v.of.Kind }

type serveOptions struct {
	listen    string
	file      string
	gpu       string
	tokenFile string
	insecure  bool
	cacheDir  string
	cacheSize config.Size
	share     bool
	turns     bool
	mps       string
	sessions  int
	client    int
	queue     int
	usage     string
	kept      config.Size
	isolation string
	profile   string
	nvml      int
	settings  bool
	warm      int
	simMemory config.Size
	transport string
	rdma      string
	rdmaBytes string
	direct    string
	drain     time.Duration
	grace     time.Duration
	away      int
	log       string
	logFormat string
	metrics   string
	admin     string
	profiles  bool
	fabric    string
	peers     []string
	between   string
	nccl      string
	limits    config.Limits
	spawner   string
	workers   workerOptions

	tls, cert, key, clientCA, tenants, state string
}

func newServe() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve [flags] [ADDR]",
		Short: "Serve the GPUs of this machine to programs elsewhere",
		Long: `Serve the GPUs of this machine on ADDR (HOST:PORT; :PORT is every interface, port 0 picks one), without one
on ` + onLoopback + `. Clients of other machines need a token or a certificate and come with TLS; docs/tls.md says how.
SIGTERM lets sessions go on for the time of --drain; SIGHUP reads tokens and certificates again.

` + exitHelp,
		Example: `  scuda serve 0.0.0.0:14833 --token-file /etc/scuda/token
  scuda serve --gpu sim:2,memory=4GiB      # two simulated GPUs, for programs on this machine`,
		SuggestFor: []string{"server", "start", "listen", "daemon"},
		Args:       cobra.ArbitraryArgs,
		RunE:       o.start,
	}
	o.flags(cmd.Flags())
	return cmd
}

// flagsElsewhere is for the program that has another one serve, and does not know its options.
func (o *serveOptions) flagsElsewhere(*cobra.Command) error { return nil }

// start serves on the address of -l or of an argument.
func (o *serveOptions) start(cmd *cobra.Command, args []string) error {
	if path := cmp.Or(o.file, os.Getenv("SCUDA_CONFIG")); path != "" {
		if err := applyFile(cmd.Flags(), path); err != nil {
			return err
		}
	}
	if err := applyEnv(cmd.Flags()); err != nil {
		return err
	}
	if len(args) > 1 {
		return usage(fmt.Errorf("one address at most, not %q", args))
	}
	if len(args) == 1 { // -l ADDR, too: an option with an optional value leaves ADDR to the arguments
		if cmd.Flags().Changed("listen") && o.listen != onLoopback {
			return usage(fmt.Errorf("two addresses, %s and %s", o.listen, args[0]))
		}
		o.listen = args[0]
	}
	o.listen = cmp.Or(o.listen, onLoopback)
	return o.run(cmd)
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVarP(&o.listen, "listen", "l", "",
		"serve the GPUs of this machine on `ADDR` (HOST:PORT; port 0 picks one); without ADDR on "+onLoopback)
	f.Lookup("listen").NoOptDefVal = onLoopback
	f.StringVar(&o.file, "config", "",
		"`FILE` with options, OPTION: VALUE a line (YAML); the environment and the command line go before it")
	f.StringVar(&o.gpu, "gpu", "auto",
		"`KIND` of GPUs to serve: real, sim or auto (auto: the real ones where there is a driver, else simulated); "+
			"sim:4,memory=2GiB,cc=12.0 says what is simulated (docs/sim.md)")
	f.StringVar(&o.tokenFile, "token-file", "",
		"`FILE` with the token that clients must present (serving), or that is presented")
	f.StringVar(&o.tenants, "tenants", "",
		"`FILE` with those who may use the server, by token or certificate (docs/tls.md); SIGHUP reads it again")
	f.BoolVar(&o.insecure, "insecure", false, "serve (or, with HOST:PORT, use) other machines without TLS or token")
	f.StringVar(&o.tls, "tls", "auto",
		"`WHEN` clients need TLS: auto (when they do not come over loopback) or always")
	f.StringVar(&o.cert, "tls-cert", "", "`FILE` with the server's certificate instead of one that it makes for itself")
	f.StringVar(&o.key, "tls-key", "", "`FILE` with its key (default: that of --tls-cert with .key)")
	f.StringVar(&o.clientCA, "client-ca", "",
		"`FILE` with the authorities whose certificates clients may show instead of a token")
	f.StringVar(&o.state, "state-dir", "",
		"`FOLDER` for the certificate that the server makes for itself (default: ~/.local/state/scuda)")
	f.StringVar(&o.cacheDir, "cache-dir", "", "`FOLDER` for uploaded modules, or none (default: ~/.cache/scuda/modules)")
	o.cacheSize = server.DefaultCache
	f.Var(&o.cacheSize, "cache-size", "`SIZE` of what is kept there; who has the most loses first")
	f.BoolVar(&o.share, "share-images", false,
		"let tenants load modules that others have uploaded, whose SHA-256 they know; they share the room in the cache")
	f.IntVar(&o.sessions, "max-sessions", 0, "`N` clients at once, 0: no limit")
	f.IntVar(&o.client, "max-sessions-per-client", server.DefaultPerClient,
		"`N` CUDA sessions, and as many of NVML, of one address at once (IPv6: of its /64), 0: no limit")
	f.IntVar(&o.queue, "max-queue", server.DefaultQueue,
		"`N` programs at once that wait for one of these places; 0: nobody waits, who has no place is refused")
	f.Var(&o.kept, "max-vram-kept", "`SIZE` of GPU memory that is kept for sessions with a limit of it (--max-vram): who "+
		"finds less left waits; 0: nothing is kept")
	f.Lookup("max-vram-kept").DefValue = "0"
	f.BoolVar(&o.turns, "turns", false,
		"have sessions take turns on a GPU by the share and class of their leases and tenants, where those differ; without "+
			"it the driver treats all sessions alike")
	f.StringVar(&o.mps, "mps", string(server.MPSOff),
		"`WHEN` the programs of a tenant share GPUs by NVIDIA's MPS, without taking turns among themselves: on, off or auto "+
			"(where "+mps.Program+" is there); the server runs a daemon for each tenant")
	f.IntVar(&o.nvml, "max-nvml-sessions", server.DefaultNVML, "`N` programs at once that use NVML, 0: no limit")
	o.limits = config.DefaultLimits()
	for i := range config.LimitTable {
		l := &config.LimitTable[i]
		f.Var(limitValue{l, &o.limits}, l.Name, "`"+l.Kind+"` "+l.Meaning+"; 0: no limit")
		if f := f.Lookup(l.Name); strings.HasPrefix(f.DefValue, "0") {
			f.DefValue = "0" // the help is silent about this one, and not about 0B or 0s
		}
	}
	f.StringVar(&o.isolation, "isolation", "auto",
		"`HOW` much is taken from workers: auto (what the machine can give), require (all, or serve "+
			"nobody), log (forbidden system calls are only logged by the kernel) or off")
	f.StringVar(&o.profile, "profiles", "base",
		"what sessions may do beside using GPUs, unless the tenants file says it for their tenant: `LIST` of profile "+
			"(count events of processor and GPU), nccl (connect to other machines), or base")
	f.StringVar(&o.spawner, "spawner", "",
		"`SOCKET` to which a spawner of its own service connects (scuda spawner), for a server that is not root; the "+
			"spawner's own options say how workers are started")
	o.workers.flags(f)
	f.BoolVar(&o.settings, "allow-nvml-set", false,
		"let clients change settings of the GPUs through NVML; the driver lets root alone, so it takes --worker-uids none")
	f.IntVar(&o.warm, "warm", 1, "`N` worker processes kept ready")
	f.Var(&o.simMemory, "sim-memory",
		"`SIZE` of the simulated GPU's memory, such as 4GiB")
	f.Lookup("sim-memory").DefValue = "half of this machine's, 8GiB at most"
	f.StringVar(&o.transport, "transport", "auto",
		"`WAY` that big copies travel: auto (by RDMA where client and server have it), rdma (no server without) or tcp")
	f.StringVar(&o.rdma, "rdma-device", "",
		"`DEVICE`[:PORT[:GIDINDEX]] for RDMA instead of the one with the address that clients connect to")
	f.StringVar(&o.rdmaBytes, "rdma-memory", config.DefaultServerRDMAMemory.String(), fmt.Sprintf(
		"`SIZE` of the pinned memory of a session that uses RDMA, %v to %v", config.MinServerRDMAMemory,
		config.MaxRDMAMemory))
	f.StringVar(&o.fabric, "rdma-fabric", "untrusted",
		"whether sessions with TLS may use RDMA, which does not encrypt: `TRUST` trusted or untrusted")
	f.StringVar(&o.between, "fabric", "untrusted",
		"whether NCCL may connect the GPUs of this server and others, which it does without encryption or authentication: "+
			"`TRUST` trusted (docs/nccl.md) or untrusted")
	f.StringVar(&o.nccl, "nccl", "", "`FILE` of NVIDIA's NCCL for that (default: libnccl.so.2, where the loader finds it)")
	f.StringSliceVar(&o.peers, "peers", nil,
		"connect to other servers of a client in these `NETWORKS` (10.0.0.0/8,192.168.7.3), so that copies between their "+
			"GPUs go from server to server; without it they go by way of the client")
	f.StringVar(&o.direct, "gpudirect", "auto",
		"`WHEN` RDMA reads and writes the GPU's memory: auto (where a self-test finds it right and not slower), always "+
			"(wherever it works) or never")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "`TIME` that clients may go on after SIGTERM")
	f.DurationVar(&o.grace, "grace", server.DefaultGrace,
		"`TIME` that a session outlives its connections: its program goes on if they can be made again within it; 0: it "+
			"ends with them")
	f.IntVar(&o.away, "max-away", server.DefaultAway,
		"`N` sessions that may wait for their clients so; beyond it those end that have waited longest; 0: no limit")
	f.StringVar(&o.log, "log", "info", "`LEVEL` debug, info, warn or error, and optionally ,file=PATH")
	f.StringVar(&o.logFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	f.StringVar(&o.metrics, "metrics", "",
		"offer metrics for Prometheus on `ADDR` (HOST:PORT; 0 picks one): /metrics, /healthz, /readyz; without a token")
	f.StringVar(&o.admin, "admin", admin.Auto,
		"`SOCKET` of the admin interface, which scuda ps, kill, drain and top ask; auto: admin-PORT.sock in "+
			"$RUNTIME_DIRECTORY, root's in /run/scuda, else in $XDG_RUNTIME_DIR/scuda; none: there is no such interface")
	f.StringVar(&o.usage, "usage-log", "",
		"`FILE` that says what sessions used, for scuda usage, or none (default: usage-PORT.jsonl in the --state-dir)")
	f.BoolVar(&o.profiles, "pprof", false, "offer Go profiles of the server there as well, on /debug/pprof/")
	withEnv(f, serveFlags...)
}

func (o *serveOptions) run(cmd *cobra.Command) error {
	c, err := o.config(cmd.ErrOrStderr())
	if err != nil {
		return usage(err)
	}
	c.Ready = func(s server.Status) {
		fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", s.Addr)
		if s.Metrics != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "metrics on http://%s/metrics\n", s.Metrics)
		}
		if s.Fingerprint != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "fingerprint %s\n", s.Fingerprint)
		}
		for i, d := range s.Devices {
			fmt.Fprintf(cmd.OutOrStdout(), "GPU %d: %s, %s (%s)\n", i, d.Name, config.Size(d.TotalMem), s.GPU)
		}
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGHUP)
	defer signal.Stop(again)
	c.Reload = again
	return server.Serve(cmd.Context(), *c)
}

// config is what the options say.
func (o *serveOptions) config(stderr io.Writer) (*server.Config, error) {
	kind, spec, _ := strings.Cut(o.gpu, ":")
	if kind != "real" && kind != "sim" && kind != "auto" || kind != "sim" && o.gpu != kind {
		return nil, fmt.Errorf("--gpu %s: real, sim, sim:SETTINGS or auto", o.gpu)
	}
	if _, err := sim.ParseSpec(sim.Config{}, spec); err != nil {
		return nil, fmt.Errorf("--gpu %s: %w", o.gpu, err)
	}
	if min(o.sessions, o.warm, o.client, o.nvml, o.queue, o.away) < 0 {
		return nil, errors.New("--max-sessions, --max-sessions-per-client, --max-nvml-sessions, --max-queue, --max-away " +
			"and --warm cannot be negative")
	}
	c := &server.Config{Addr: completePort(o.listen), Insecure: o.insecure, GPU: kind, Sim: spec,
		NVMLSettings: o.settings, SimMemory: uint64(o.simMemory), CacheDir: o.cacheDir, Warm: o.warm, MaxSessions: o.sessions,
		CacheBytes: int64(o.cacheSize), ShareImages: o.share,
		Drain: o.drain, Profiles: o.profiles, Limits: &o.limits, Admin: o.admin,
		UsageLog: o.usage, Turns: o.turns}
	c.MaxPerClient, c.MaxNVML, c.MaxQueue, c.KeptVRAM = limit(o.client), limit(o.nvml), limit(o.queue), uint64(o.kept)
	c.MaxAway = limit(o.away)
	if c.Drain == 0 {
		c.Drain = -1 // the server's word for not at all
	}
	if c.Grace = o.grace; c.Grace == 0 {
		c.Grace = -1 // likewise
	}
	err := o.readRDMA(c)
	if err != nil {
		return nil, err
	}
	if c.GPUDirect, err = executor.ParseGPUDirect(o.direct); err != nil {
		return nil, fmt.Errorf("--gpudirect: %w", err)
	}
	if err := o.readTrust(c); err != nil {
		return nil, err
	}
	if c.MPS, err = server.ParseMPS(o.mps); err != nil {
		return nil, fmt.Errorf("--mps: %w", err)
	}
	if c.Isolation, err = isolation.ParseMode(o.isolation); err != nil {
		return nil, fmt.Errorf("--isolation: %w", err)
	}
	if c.Profile, err = isolation.ParseProfiles(o.profile); err != nil {
		return nil, fmt.Errorf("--profiles: %w", err)
	}
	if err := o.readWorkers(c); err != nil {
		return nil, err
	}
	if c.Metrics, err = config.ParseMetrics(o.metrics); err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	if o.profiles && c.Metrics == "" {
		return nil, errors.New("--pprof needs --metrics ADDR")
	}
	if c.LogFormat, err = config.ParseLogFormat(o.logFormat); err != nil {
		return nil, fmt.Errorf("--log-format: %w", err)
	}
	if c.Log, err = config.OpenLog(o.log, c.LogFormat, stderr); err != nil {
		return nil, fmt.Errorf("--log: %w", err)
	}
	o.warnOfFiles(c.Log)
	return c, nil
}

// limit gives an option, whose word for no limit is 0, in the server's, which is negative.
func limit(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// readRDMA reads the options of RDMA.
func (o *serveOptions) readRDMA(c *server.Config) error {
	over, err := config.ParseTransport(o.transport)
	if err != nil {
		return fmt.Errorf("--transport: %w", err)
	}
	memory, err := config.ServerRDMAMemory(o.rdmaBytes)
	if err != nil {
		return fmt.Errorf("--rdma-memory: %w", err)
	}
	if over == config.TransportRDMA {
		if _, err := rdma.Choose(o.rdma, netip.Addr{}, netip.Addr{}); err != nil {
			return fmt.Errorf("--transport rdma: %w", err)
		}
	}
	c.NoRDMA, c.RDMADevice, c.RDMAMemory = over == config.TransportTCP, o.rdma, uint64(memory)
	return nil
}

// completePort lets ":PORT" mean every interface, as it does for net.Listen.
func completePort(addr string) string {
	if strings.HasPrefix(addr, ":") {
		return "[::]" + addr
	}
	return addr
}
