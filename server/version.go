package server

import (
	"runtime/debug"

	"scuda.dev/scuda/api/cuda"
)

// digest of the API description; both sides of a session must have the same.
const digest = cuda.Digest

// release is set by the linker (see the Makefile), so that both sides of a session name theirs alike.
var release string

// Version is the scuda release, as the build recorded it.
func Version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
