// Package systemd has the units of scuda's services, which packages install as files and `scuda service install`
// writes.
package systemd

import "embed"

// Units are the files of this folder, by their names.
//
//go:embed *.service
var Units embed.FS
