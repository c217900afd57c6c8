package config

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrLimit is a limit that cannot be read.
var ErrLimit = errors.New("bad limit")

// Limits bound what one tenant of a server gets. 0 means that there is no bound, unless it is said otherwise.
type Limits struct {
	Sessions     uint64        // CUDA sessions of the tenant at once
	Queue        uint64        // CUDA clients of the tenant that may wait; 0: its share, where there are other tenants
	NVML         uint64        // NVML sessions of the tenant at once; 0: its share, where there are other tenants
	VRAM         Size          // of the GPUs, for each session
	TenantVRAM   Size          // of the GPUs, for all sessions of the tenant together
	LeaseVRAM    Size          // of the GPUs, for all sessions of one lease together; leases say it, no option
	HostMemory   Size          // of the server's machine, that a worker holds for its client
	PinnedMemory Size          // of that machine, page-locked
	Idle         time.Duration // how long a session may make no call
	Work         time.Duration // how long a GPU may take for what it was given
}

// Limit is one of them: an option of the server, and a word of the tenants file, which goes before it.
type Limit struct {
	Name    string // with dashes in front, an option
	Kind    string // of its value, for the help
	Meaning string

	field func(*Limits) any
}

// LimitTable has all of them.
var LimitTable = []Limit{
	{"max-sessions-per-tenant", "N", "CUDA sessions of one tenant at once",
		func(l *Limits) any { return &l.Sessions }},
	{"max-queue-per-tenant", "N", "programs of one tenant that wait for a CUDA session; 0: where there are several, a " +
		"quarter of --max-queue", func(l *Limits) any { return &l.Queue }},
	{"max-nvml-sessions-per-tenant", "N", "NVML sessions of one tenant at once; 0: where there are several, a quarter " +
		"of --max-nvml-sessions", func(l *Limits) any { return &l.NVML }},
	{"max-vram", "SIZE", "of GPU memory for each session, on all GPUs together",
		func(l *Limits) any { return &l.VRAM }},
	{"max-vram-per-tenant", "SIZE", "of GPU memory for all sessions of a tenant together, on all GPUs",
		func(l *Limits) any { return &l.TenantVRAM }},
	{"max-host-memory", "SIZE", "of this machine's memory that a session's worker keeps for its client: images, " +
		"inputs of the linker", func(l *Limits) any { return &l.HostMemory }},
	{"max-pinned-memory", "SIZE", "of this machine's memory that a session's copies go through, page-locked",
		func(l *Limits) any { return &l.PinnedMemory }},
	{"idle-timeout", "TIME", "after which a session ends that makes no call and has no work on a GPU",
		func(l *Limits) any { return &l.Idle }},
	{"work-timeout", "TIME", "that a GPU may take for what it was given; a session that takes longer ends with " +
		"CUDA_ERROR_LAUNCH_TIMEOUT", func(l *Limits) any { return &l.Work }},
}

// MostVRAM is how much GPU memory a session may have at most; 0: any number.
func (l *Limits) MostVRAM() Size { return Lower(l.VRAM, Lower(l.TenantVRAM, l.LeaseVRAM)) }

// Lower is the lower of two bounds, of which 0 is none.
func Lower(a, b Size) Size {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// DefaultLimits are those of a server that is told nothing.
func DefaultLimits() Limits { return Limits{HostMemory: 8 * GiB, PinnedMemory: 4 * GiB} }

// least is the shortest time that makes sense as a limit: less ends sessions that do nothing wrong.
const least = time.Second

// Set reads a value.
func (t *Limit) Set(l *Limits, value string) error {
	switch p := t.field(l).(type) {
	case *uint64:
		n, bad := strconv.ParseUint(value, 10, 31)
		if bad != nil {
			return fmt.Errorf("%w: %s: %q is no whole number", ErrLimit, t.Name, value)
		}
		*p = n
	case *Size:
		var n Size
		if err := n.Set(value); err != nil {
			return fmt.Errorf("%w: %s: %w, not %q", ErrLimit, t.Name, err, value)
		}
		*p = n
	case *time.Duration:
		d, bad := time.ParseDuration(value)
		if bad != nil || d < 0 || d > 0 && d < least {
			return fmt.Errorf("%w: %s: %q is no time of %v at least, such as 90s, 30m or 8h; 0 is no limit",
				ErrLimit, t.Name, value, least)
		}
		*p = d
	}
	return nil
}

// Text is a value as [Limit.Set] reads it.
func (t *Limit) Text(l *Limits) string {
	switch p := t.field(l).(type) {
	case *uint64:
		return strconv.FormatUint(*p, 10)
	case *Size:
		n, unit := *p, 0
		for n > 0 && n%1024 == 0 && unit < len(units)-1 {
			n, unit = n/1024, unit+1
		}
		return strconv.FormatUint(uint64(n), 10) + units[unit]
	case *time.Duration:
		return p.String()
	}
	return ""
}

// LimitNamed finds a limit.
func LimitNamed(name string) (*Limit, bool) {
	for i := range LimitTable {
		if LimitTable[i].Name == name {
			return &LimitTable[i], true
		}
	}
	return nil, false
}
