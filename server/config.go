package server

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/verbs"
)

// Limits that a [Config] does not set.
const (
	startTimeout  = 60 * time.Second // of a worker: driver initialisation included
	takeTimeout   = 30 * time.Second // how long a client waits for a worker
	defaultDrain  = 30 * time.Second
	defaultWarm   = 1
	minTokenBytes = 8
	maxName       = 64  // bytes of what a client calls itself, in the log
	maxReason     = 256 // bytes of the reason for a refusal, in the log
)

// Limits of sessions where a [Config] says nothing. An NVML session is a process of about 20 MB without a context.
const (
	DefaultNVML      = 512
	DefaultPerClient = 256
	DefaultQueue     = 256
	DefaultAway      = 64
)

// DefaultGrace is how long sessions outlive their connections where a [Config] says nothing.
const DefaultGrace = time.Minute

// DefaultCache is the module cache's bound where a [Config] says nothing.
const DefaultCache = modcache.DefaultBytes

// Errors of [Config.Check] and [Serve].
var (
	ErrInsecure = errors.New("a server that others can reach needs a token")
	ErrToken    = errors.New("unusable token file")
	ErrNoWorker = errors.New("no worker could be started")
)

// Config says how to serve. Its zero value serves on every GPU of the machine (or the simulated one), on the loopback
// address.
type Config struct {
	Addr     string           // HOST:PORT, port 0 picks one; default 127.0.0.1:14833
	Listener *net.TCPListener // used instead of Addr where set

	Token []byte // secret that clients must present; nil: none
	// Tenants are those who may use the server, and how it shakes hands; nil: whoever has Token, or everybody
	Tenants  *tenant.Registry
	Reload   <-chan os.Signal // says that Tenants is to be read again
	Insecure bool             // allows an address other than loopback without a token, and connections without TLS

	// TLS is how the server shakes hands with clients that want it; nil: not at all. Where there is one, connections that
	// do not come over loopback have to have TLS, and with TLSAlways all.
	TLS       *tls.Config // goes with Token; Tenants has its own
	TLSAlways bool
	// TrustedFabric lets sessions with TLS use RDMA, whose bytes nobody protects.
	TrustedFabric bool

	// Fabric says that the network between this server and others is trusted: NCCL, whose connections nobody encrypts or
	// authenticates, may use it in workers whose profile has [isolation.NCCL].
	Fabric bool
	NCCL   string // path of NCCL's library; default libnccl.so.2

	// Peers are the networks in which this server may connect to other servers of its clients; none: it connects to
	// nobody. Copies between servers then go by way of the client.
	Peers []netip.Prefix

	// MPS says whether workers run under NVIDIA's MPS, with a daemon for each tenant
	MPS         MPSMode
	mpsControl  string        // its control program, instead of the one that is found
	mpsLook     time.Duration // between two looks at its daemons, instead of the usual one
	mpsPatience time.Duration // with a daemon that is to take leave of a worker, instead of the usual one

	GPU        string // "real", "sim" or "auto" (the real driver where there is one)
	Library    string // path of the driver library; default libcuda.so.1
	SimMemory  uint64 // bytes of a simulated GPU, 0: its default
	SimDevices int    // simulated GPUs, 0: its default
	Sim        string // what [sim.ParseSpec] reads, over the above and the environment's; "": nothing

	CacheDir    string // module cache; default [modcache.DefaultDir]; "none" keeps images in memory
	CacheBytes  int64  // its bound, 0: its default
	ShareImages bool   // a tenant may load what another has brought to the cache
	Staging     int    // pinned staging slots of 1 MiB for each session, 0: default

	NoRDMA bool // big copies travel by TCP only
	// DEVICE, DEVICE:PORT or DEVICE:PORT:GIDINDEX; "": the one that has the address to which the client connected
	RDMADevice string
	GPUDirect  executor.GPUDirect // whether RDMA reads and writes the GPU's memory
	RDMAMemory uint64             // pinned bytes for each session that uses RDMA (config.ServerRDMAMemory); 0: the default

	Isolation isolation.Mode // of workers from everything else; "": [isolation.Auto]
	// Profile is what sessions may do of tenants that have no profiles of their own
	Profile isolation.Profile
	// Workers says how they are started where the server does that by itself or, as root, by a child; with a Spawner the
	// service of that says it.
	Workers  spawner.Config
	Spawner  string // socket at which a spawner of its own service connects; "": there is none
	SameUser bool   // that workers share the server's user is the operator's wish
	StateDir string // keeps the user ids of tenants; "": they are forgotten with the server

	NVMLSettings bool // clients may change settings of the GPUs through NVML

	Limits *config.Limits // of tenants that have none of their own; nil: [config.DefaultLimits]

	Warm        int // workers kept ready; default 1
	MaxSessions int // CUDA sessions at once, 0: no limit
	MaxNVML     int // NVML sessions at once, 0: [DefaultNVML], negative: no limit
	// sessions of one address at once, of each kind; 0: [DefaultPerClient], negative: no limit
	MaxPerClient int
	// CUDA clients that wait for a place, 0: [DefaultQueue], negative: nobody does
	MaxQueue int
	// bytes of the GPUs' memory that are kept for sessions with a limit of it: one for which there is not as much left
	// waits; 0: nothing is kept
	KeptVRAM uint64
	// sessions take turns on a GPU by the share and class of their tenants and leases
	Turns bool
	// how long running sessions may go on after the context was cancelled; default 30 s, negative: not at all
	Drain time.Duration
	// Grace is how long a session outlives its connections, so that its client may come back; default [DefaultGrace],
	// negative: not at all.
	Grace time.Duration
	// MaxAway is how many sessions may wait for their clients so: beyond it those end that have waited longest. 0:
	// [DefaultAway], negative: any number.
	MaxAway int

	// UsageLog is the file that says what sessions used; "": one in StateDir, if there is one; [usage.None]: none.
	UsageLog string

	// Admin is the socket of the admin interface: a path, [admin.Auto], or [admin.None], as "" is.
	Admin string

	// Metrics is HOST:PORT of an HTTP port with /metrics for Prometheus, /healthz and /readyz; "": none. It is served
	// without a token.
	Metrics  string
	Profiles bool // with /debug/pprof/ there as well

	Log *slog.Logger
	// LogFormat is that of the workers' lines; Log writes those of the supervisor.
	LogFormat config.LogFormat
	Stderr    io.Writer    // the workers' standard error; default os.Stderr
	Ready     func(Status) // called once when clients are welcome
}

// Status is what [Config.Ready] learns.
type Status struct {
	Addr    net.Addr
	GPU     string // "real" or "sim"
	Driver  string
	Devices []transport.Device
	Metrics net.Addr // nil: none
	// Fingerprint is that of the server's certificate, "" where it has none.
	Fingerprint string
}

func (c Config) withDefaults() Config {
	if c.Addr == "" {
		c.Addr = fmt.Sprintf("127.0.0.1:%d", transport.DefaultPort)
	}
	if c.GPU == "" {
		c.GPU = "auto"
	}
	c.MaxNVML = cmp.Or(c.MaxNVML, DefaultNVML)
	c.MaxPerClient = cmp.Or(c.MaxPerClient, DefaultPerClient)
	c.MaxQueue = cmp.Or(c.MaxQueue, DefaultQueue)
	if c.Limits == nil {
		usual := config.DefaultLimits()
		c.Limits = &usual
	}
	c.Warm = max(c.Warm, defaultWarm)
	if c.Drain == 0 {
		c.Drain = defaultDrain
	}
	c.MaxAway = cmp.Or(c.MaxAway, DefaultAway)
	c.Grace = max(cmp.Or(c.Grace, DefaultGrace), 0)
	c.Isolation = cmp.Or(c.Isolation, isolation.Auto)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Tenants == nil {
		c.Tenants = tenant.Static(c.Token, c.TLS)
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	return c
}

// rdmaSlots is the number of a session's slots for RDMA.
func (c *Config) rdmaSlots() int {
	if c.NoRDMA {
		return -1
	}
	return int(c.RDMAMemory >> 20)
}

// noRDMA says why clients are not offered RDMA.
func (c *Config) noRDMA() string {
	if c.NoRDMA {
		return "it is switched off (--transport tcp)"
	}
	if _, err := verbs.Devices(); err != nil {
		return err.Error()
	}
	return ""
}

// CheckAddress refuses an address that other machines can reach unless clients have to show who they are or the
// operator insists.
func CheckAddress(addr string, asks, insecure bool) error {
	if asks || insecure {
		return nil
	}
	full, err := transport.ParseAddress(addr)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(full)
	if err != nil {
		return err
	}
	if config.IsLoopback(host) {
		return nil
	}
	return fmt.Errorf(
		"%w: %s is not a loopback address; give --token-file FILE, --tenants FILE or --client-ca FILE, or --insecure if "+
			"everybody who reaches it may use the GPUs", ErrInsecure, addr)
}

// ReadToken reads a token file, as clients do, and refuses a token that could be guessed.
func ReadToken(path string) ([]byte, error) {
	token, err := config.ReadToken(path)
	if err == nil && len(token) < minTokenBytes {
		err = fmt.Errorf("that of %s has %d bytes", path, len(token))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w; write one of %d to %d bytes there, for example with: scuda token create",
			ErrToken, err, minTokenBytes, transport.MaxToken)
	}
	return token, nil
}
