package transport

import (
	"fmt"
	"slices"
	"strings"
)

// MinVersion is the oldest version of the protocol that this release speaks, and [Version] the newest.
const MinVersion = 1

// Versions is a range of protocol versions.
type Versions struct{ Min, Max uint32 }

// Spoken are the versions of this release.
var Spoken = Versions{MinVersion, Version}

// Has says whether a version is in the range.
func (v Versions) Has(version uint32) bool { return v.Min <= version && version <= v.Max }

// String is "version 1" or "versions 1 to 3".
func (v Versions) String() string {
	if v.Min == v.Max {
		return fmt.Sprintf("version %d", v.Max)
	}
	return fmt.Sprintf("versions %d to %d", v.Min, v.Max)
}

// Common is the newest version that both sides speak. There is none where a range is empty (Min above Max).
func (v Versions) Common(peer Versions) (version uint32, ok bool) {
	version = min(v.Max, peer.Max)
	return version, version >= v.Min && version >= peer.Min
}

// rangeOf completes what a peer says: releases that speak one version name only that.
func rangeOf(least, most uint32) Versions {
	if least == 0 {
		least = most
	}
	return Versions{least, most}
}

// VersionError is a client and a server that have no protocol version in common.
type VersionError struct {
	Client, Server Versions
	// The releases, as far as they are known.
	ClientRelease, ServerRelease string
}

func (e *VersionError) Error() string {
	return fmt.Sprintf(
		"the client%s speaks protocol %s, this server%s %s; install the same scuda release on both machines",
		inBrackets(e.ClientRelease), e.Client, inBrackets(e.ServerRelease), e.Server)
}
func (e *VersionError) Unwrap() error { return ErrVersion }

func inBrackets(release string) string {
	if release == "" {
		return ""
	}
	return fmt.Sprintf(" (scuda %.40s)", release)
}

// Capabilities are what one release can do and another cannot, by name. Each side says its own when a connection opens,
// and uses only what both have. A name never gets another meaning.
const (
	// CapCorrelation: commands may have a correlation word in their header.
	CapCorrelation = "correlation"
	// CapResume: a line outlives its sockets. A client that comes back names line, epoch and acknowledged position.
	CapResume = "resume"
	// CapResumeRDMA: so does the control connection of RDMA, in sessions whose lines do. Earlier releases have it end.
	CapResumeRDMA = "resume-rdma"
	// CapTickets: further connections are opened with a ticket, which is for one purpose and can be used once.
	CapTickets = "tickets"
	// CapQueue: a server without a place lets a client wait that says how long it is ready to.
	CapQueue = "queue"
	// CapAdmin: the server offers its admin interface over its port.
	CapAdmin = "admin"
	// CapProfile: the server records what its GPU does for a session that asks for it.
	CapProfile = "profile"
	// CapNCCL: the server takes the commands of NCCL, and says whether it carries them out.
	CapNCCL = "nccl"
	// CapSkip: the server knows that parts of a client's command stream are for others, and takes the command skip.
	CapSkip = "skip"
	// CapWindows: the server's drivers keep to the window of addresses that a hello names.
	CapWindows = "windows"
	// CapPeers: bytes of copies between two servers of a program go from one to the other.
	CapPeers = "peers"
)

// capabilityTexts say in a refusal what the other side is asked for.
var capabilityTexts = map[string]string{
	CapCorrelation: "correlation words in commands", CapResume: "lines that outlive their sockets",
	CapResumeRDMA: "a control connection of RDMA that outlives its sockets",
	CapTickets:    "tickets for further connections", CapQueue: "a queue for its places",
	CapAdmin: "an admin interface over its port", CapProfile: "profiles of its GPUs",
	CapNCCL: "NCCL in its workers", CapSkip: "clients of several servers",
	CapWindows: "windows of addresses for each of several servers", CapPeers: "connections between servers",
}

// Offered are the capabilities of this release, of client and server alike.
//
// Sessions of CUDA offer more where both sides want it ([Resuming]).
func Offered() []string {
	return []string{CapCorrelation, CapTickets, CapQueue, CapAdmin, CapProfile, CapNCCL, CapSkip, CapWindows,
		CapPeers}
}

// Resuming are the capabilities of sessions whose connections may lose their sockets.
func Resuming() []string { return append(Offered(), CapResume, CapResumeRDMA) }

// CapabilityError is a peer that lacks something without which the other side does not go on.
type CapabilityError struct {
	Missing []string
	Peer    string // "the server" or "the client"
	Release string // the peer's
}

func (e *CapabilityError) Error() string {
	names := make([]string, len(e.Missing))
	for i, name := range e.Missing {
		names[i] = fmt.Sprintf("%.40q", name)
		if text := capabilityTexts[name]; text != "" {
			names[i] += " (" + text + ")"
		}
	}
	return fmt.Sprintf("%s%s does not have %s; install the same scuda release on both machines", e.Peer,
		inBrackets(e.Release), strings.Join(names, ", "))
}
func (e *CapabilityError) Unwrap() error { return ErrCapability }

// Agree gives the capabilities that two sides may use with each other: those of both, sorted. What a side requires and
// its peer lacks is missing, sorted and each once.
func Agree(own, required, peer []string) (both, missing []string) {
	for _, name := range own {
		if slices.Contains(peer, name) {
			both = append(both, name)
		}
	}
	for _, name := range required {
		if !slices.Contains(peer, name) {
			missing = append(missing, name)
		}
	}
	slices.Sort(both)
	slices.Sort(missing)
	return slices.Compact(both), slices.Compact(missing)
}
