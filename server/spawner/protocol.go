package spawner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"scuda.dev/scuda/server/isolation"
)

// A packet is one message: its kind, then fixed fields (little-endian), then at most maxText bytes of text. The spawner
// begins with hello. Whoever gets something else hangs up.
const (
	kindHello   byte = 1 + iota // spawner: version, range, what is missing
	kindStart                   // supervisor: id, order; with the worker's line and its standard error
	kindKill                    // supervisor: id
	kindStarted                 // spawner: id, pid
	kindFailed                  // spawner: id, why there is no such worker
	kindExited                  // spawner: id, how it ended; no text: exit status 0
	kindKeep                    // supervisor: id; with what the next supervisor needs of a worker
	kindHouse                   // both: with what it needs of the server
	kindKept                    // spawner, after hello: id, pid; with what the supervisor before had kept
	kindAll                     // spawner: that was all that is kept
	kindBye                     // supervisor: no supervisor comes after it
)

const (
	protocolVersion = 2
	maxText         = 400
	maxPacket       = 512
	startFiles      = 2 // descriptors with a start
	mostFiles       = max(startFiles, KeptFiles, HouseFiles)
)

// errPacket is a packet that no peer of this version sends.
var errPacket = errors.New("malformed packet between supervisor and spawner")

// packet is any message; which fields it has depends on its kind.
type packet struct {
	Kind  byte
	ID    uint64 // of what is about a worker
	Order Order  // start
	PID   uint32 // started, kept
	Facts Facts  // hello; the text is what is missing, with a zero byte between the two
	Text  string // failed, exited
}

const (
	flagEnclosed = 1 << iota
	allFlags     = 1<<iota - 1
)

// flags of hello
const (
	factFolders = 1 << iota
	factKeeps
	allFacts = 1<<iota - 1
)

// filesWith is how many descriptors come with a packet.
func filesWith(kind byte) int {
	switch kind {
	case kindStart:
		return startFiles
	case kindKeep, kindKept:
		return KeptFiles
	case kindHouse:
		return HouseFiles
	}
	return 0
}

// append adds the packet's bytes.
func (p *packet) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, p.Kind)
	text := p.Text
	switch p.Kind {
	case kindHello:
		b = le.AppendUint32(b, protocolVersion)
		b = le.AppendUint32(le.AppendUint32(b, p.Facts.UIDs.First), p.Facts.UIDs.Last)
		b = append(b, boolean(p.Facts.Folders)|boolean(p.Facts.Keeps)*factKeeps)
		text = clip(p.Facts.Limits) + "\x00" + clip(p.Facts.Files)
	case kindStart:
		b = append(le.AppendUint64(b, p.ID), p.Order.Tenant[:]...)
		b = le.AppendUint32(le.AppendUint32(b, p.Order.UID), uint32(p.Order.Profile))
		return append(b, boolean(p.Order.Enclosed)*flagEnclosed)
	case kindStarted, kindKept:
		return le.AppendUint32(le.AppendUint64(b, p.ID), p.PID)
	case kindKill, kindKeep:
		return le.AppendUint64(b, p.ID)
	case kindHouse, kindAll, kindBye:
		return b
	default:
		b = le.AppendUint64(b, p.ID)
	}
	return append(b, text[:min(len(text), maxText)]...)
}

// clip keeps two texts within one.
func clip(text string) string { return text[:min(len(text), maxText/2-1)] }

func boolean(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// parsePacket reads a packet.
func parsePacket(b []byte) (p packet, err error) {
	if len(b) == 0 || len(b) > maxPacket {
		return p, fmt.Errorf("%w: %d bytes", errPacket, len(b))
	}
	p.Kind, b = b[0], b[1:]
	le := binary.LittleEndian
	fixed := map[byte]int{kindHello: 13, kindStart: 33, kindKill: 8, kindStarted: 12, kindFailed: 8, kindExited: 8,
		kindKeep: 8, kindKept: 12, kindHouse: 0, kindAll: 0, kindBye: 0}
	n, known := fixed[p.Kind]
	text := p.Kind == kindHello || p.Kind == kindFailed || p.Kind == kindExited
	switch {
	case !known:
		return p, fmt.Errorf("%w: kind %d", errPacket, p.Kind)
	case len(b) < n || !text && len(b) != n || len(b)-n > maxText:
		return p, fmt.Errorf("%w: %d bytes of kind %d", errPacket, len(b), p.Kind)
	}
	p.Text, b = string(b[n:]), b[:n]
	if p.Kind == kindHello {
		if v := le.Uint32(b); v != protocolVersion {
			const text = "%w: version %d instead of %d; supervisor and spawner are to be of one release; restart " +
				"scuda-spawner.service"
			return p, fmt.Errorf(text, errPacket, v, protocolVersion)
		}
		limits, files, two := strings.Cut(p.Text, "\x00")
		p.Facts = Facts{Range{le.Uint32(b[4:]), le.Uint32(b[8:])}, limits, files, b[12]&factFolders != 0,
			b[12]&factKeeps != 0}
		p.Text = ""
		if b[12]&^allFacts != 0 || !two || len(limits) >= maxText/2 || len(files) >= maxText/2 ||
			strings.Contains(files, "\x00") {
			return p, fmt.Errorf("%w: the spawner's first word", errPacket)
		}
		return p, p.Facts.UIDs.check()
	}
	if n == 0 {
		return p, nil
	}
	p.ID, b = le.Uint64(b), b[8:]
	switch p.Kind {
	case kindStart:
		p.Order = Order{Key(b[:16]), le.Uint32(b[16:]), isolation.Profile(le.Uint32(b[20:])), b[24]&flagEnclosed != 0}
		if b[24]&^allFlags != 0 || p.Order.Profile&^isolation.AllProfiles != 0 {
			return p, fmt.Errorf("%w: flags %#x, profile %#x", errPacket, b[24], uint(p.Order.Profile))
		}
	case kindStarted, kindKept:
		if p.PID = le.Uint32(b); int32(p.PID) <= 1 {
			return p, fmt.Errorf("%w: process %d", errPacket, int32(p.PID))
		}
	}
	return p, nil
}
