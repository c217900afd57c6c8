package server

import (
	"fmt"

	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/internal/window"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/transport"
)

// greeting is what every welcome says: this server's release, and what it and the client can do together.
func greeting(h *transport.Hello) *transport.Welcome {
	w := &transport.Welcome{
		Version: release.Version(), Digest: digest, MinVersion: transport.Spoken.Min, MaxVersion: transport.Spoken.Max,
		Capabilities: transport.Offered(),
	}
	w.Protocol, _ = transport.Spoken.Common(h.Versions())
	return w
}

// check refuses a client with which this server cannot speak: another digest of what travels, or a need that the server
// does not meet.
func check(h *transport.Hello, offered []string) error {
	if _, missing := transport.Agree(nil, h.Needs(), offered); missing != nil {
		return &transport.CapabilityError{Missing: missing, Peer: "this server", Release: release.Version()}
	}
	switch h.Kind {
	case transport.KindInfo, transport.KindAdmin, transport.KindCallback, transport.KindBulk, transport.KindRDMA,
		transport.KindResume, transport.KindIntroduce, transport.KindPeer:
		// no calls, or those of a session that was checked
		return nil
	}
	if h.Digest == digest && h.Kind == transport.KindCUDA {
		if err := executor.CheckHello(h); err != nil {
			return refusef(transport.StatusMalformed, "%w", err)
		}
		if err := window.Check(h.Window, h.Windows); err != nil {
			return refusef(transport.StatusMalformed, "%w", err)
		}
	}
	if h.Digest == digest {
		return nil
	}
	return refusef(transport.StatusDigest,
		"client %s has API description %.12s, server %s has %.12s; install the same scuda release on both machines",
		orUnknown(h.Version), orUnknown(h.Digest), release.Version(), digest)
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown)"
	}
	return fmt.Sprintf("%.40s", s)
}
