// Package release says which release of scuda this is. Client and server name it to each other and to people.
package release

import "runtime/debug"

// version is set by the linker (cmd/build.sh), so that both sides of a session name theirs alike.
var version string

// Version is the scuda release, as the build recorded it.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
