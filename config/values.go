package config

import (
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"scuda.dev/scuda/transport"
)

// Transport says over what big copies travel. Whatever it is, the rest of a session uses TCP, and big copies do while
// there is no RDMA.
type Transport string

// Transports.
const (
	TransportAuto Transport = "auto" // RDMA where both machines have it
	TransportRDMA Transport = "rdma" // not without RDMA: no session is opened, no server starts
	TransportTCP  Transport = "tcp"
)

// ParseTransport reads the name of a transport; none means auto.
func ParseTransport(s string) (Transport, error) {
	switch t := Transport(strings.Trim(s, blanks)); t {
	case "":
		return TransportAuto, nil
	case TransportAuto, TransportRDMA, TransportTCP:
		return t, nil
	}
	return "", fmt.Errorf("%w: %q is none of auto, rdma or tcp", ErrTransport, s)
}

// Size is a number of bytes written with a binary unit.
type Size uint64

// Units of sizes.
const (
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}

func (b Size) String() string {
	v, i := float64(b), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) + " " + units[i]
}

// Type is what an option's help calls it.
func (b *Size) Type() string { return "size" }

// Set reads a size: a whole number and, unless they are bytes, a unit.
func (b *Size) Set(s string) error {
	s = strings.Trim(s, blanks)
	digits := strings.TrimRight(s, "BKMGTkmgtib ")
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: write a whole number and B, KiB, MiB, GiB or TiB", ErrSize)
	}
	unit := strings.TrimSpace(s[len(digits):])
	for i, u := range units {
		if strings.EqualFold(unit, u) || i > 0 && strings.EqualFold(unit, u[:1]) || i == 0 && unit == "" {
			if shift := 10 * i; v<<shift>>shift == v {
				*b = Size(v << shift)
				return nil
			}
			return fmt.Errorf("%w: too large", ErrSize)
		}
	}
	return fmt.Errorf("%w: no unit %q; B, KiB, MiB, GiB or TiB", ErrSize, unit)
}

// Pinned memory of a session that uses RDMA: the client's for copies of memory that cannot be registered, and the
// server's slots.
const (
	MaxRDMAMemory           = 256 * MiB
	DefaultClientRDMAMemory = 16 * MiB
	DefaultServerRDMAMemory = 96 * MiB
	MinServerRDMAMemory     = 12 * MiB // less is of no use
)

// ClientRDMAMemory reads the client's memory for RDMA, whole MiB; 0 is none.
func ClientRDMAMemory(s string) (Size, error) {
	if strings.Trim(s, blanks) == "" {
		return DefaultClientRDMAMemory, nil
	}
	return rdmaMemory(s, 0, 0)
}

// ServerRDMAMemory reads the server's memory for RDMA, whole MiB; 0 is the default.
func ServerRDMAMemory(s string) (Size, error) {
	if strings.Trim(s, blanks) == "" {
		return DefaultServerRDMAMemory, nil
	}
	return rdmaMemory(s, DefaultServerRDMAMemory, MinServerRDMAMemory)
}

func rdmaMemory(s string, zero, least Size) (Size, error) {
	var n Size
	if err := n.Set(s); err != nil {
		return 0, fmt.Errorf("%w, not %q", err, s)
	}
	if n == 0 {
		return zero, nil
	}
	if n < max(least, MiB) || n > MaxRDMAMemory {
		return 0, fmt.Errorf("%w: %q; write %v to %v", ErrSize, s, max(least, MiB), MaxRDMAMemory)
	}
	return n &^ (MiB - 1), nil
}

// ParseMetrics reads where metrics are offered: HOST:PORT, or :PORT for all addresses; nothing means nowhere.
func ParseMetrics(s string) (string, error) {
	s = strings.Trim(s, blanks)
	if s == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %q is not HOST:PORT (port 0 picks one): %w", ErrMetrics, s, err)
	}
	return net.JoinHostPort(host, port), nil
}

// Client is what a session's client reads.
type Client struct {
	Servers    []transport.Target // at least one
	Transport  Transport
	RDMADevice string // DEVICE[:PORT[:GIDINDEX]]; "": the one that fits
	RDMAMemory Size
	Bulk       int           // connections for big copies, beside the main one
	Queue      time.Duration // how long it waits for a place on a server that is full; 0: not at all
	Resume     bool          // its session outlives its connections
}

const usualBulk = 4

// ReadClient reads a client's settings. An error names the variable that is to be corrected.
func ReadClient() (*Client, error) {
	var c Client
	var err error
	if c.Servers, err = targets(); err != nil {
		return nil, err
	}
	if c.Transport, c.RDMADevice, err = Path(); err != nil {
		return nil, err
	}
	if c.RDMAMemory, err = ClientRDMAMemory(os.Getenv("SCUDA_RDMA_MEMORY")); err != nil {
		return nil, fmt.Errorf("SCUDA_RDMA_MEMORY: %w", err)
	}
	if c.Bulk, err = strconv.Atoi(strings.Trim(os.Getenv("SCUDA_BULK"), blanks)); err != nil || c.Bulk < 0 {
		c.Bulk = usualBulk
	}
	if c.Queue, err = ParseQueue(os.Getenv("SCUDA_QUEUE")); err != nil {
		return nil, fmt.Errorf("SCUDA_QUEUE: %w", err)
	}
	switch text := strings.Trim(os.Getenv("SCUDA_RESUME"), blanks); text {
	case "", "1":
		c.Resume = true
	case "0":
	default:
		return nil, fmt.Errorf("SCUDA_RESUME: write 1 or 0, not %.40q", text)
	}
	return &c, nil
}

// targets gives the configured servers.
func targets() ([]transport.Target, error) {
	_, n, err := TargetOf(0)
	all := make([]transport.Target, n)
	for i := range all {
		if all[i], _, err = TargetOf(i); err != nil {
			break
		}
	}
	return all, err
}

// ParseQueue reads how long a client waits for a place; nothing means as long as it takes.
func ParseQueue(s string) (time.Duration, error) {
	s = strings.Trim(s, blanks)
	if s == "" {
		return transport.LongestWait, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%w: %.40q is no time such as 30s, 10m or 2h; 0 is not to wait", ErrQueue, s)
	}
	return min(d, transport.LongestWait), nil
}

// Path reads how a client's big copies are to travel, and over which device where by RDMA.
func Path() (t Transport, device string, err error) {
	if t, err = ParseTransport(os.Getenv("SCUDA_TRANSPORT")); err != nil {
		return "", "", fmt.Errorf("SCUDA_TRANSPORT: %w", err)
	}
	return t, RDMADevice(), nil
}

// RDMADevice reads over which device the client's RDMA goes; "" is the one that fits. Package rdma parses it.
func RDMADevice() string { return strings.Trim(os.Getenv("SCUDA_RDMA_DEVICE"), blanks) }

// Metrics reads where a client's process offers metrics; "" is nowhere.
func Metrics() (string, error) { return ParseMetrics(os.Getenv("SCUDA_METRICS")) }
