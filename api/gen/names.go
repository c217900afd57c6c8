package main

import (
	"strings"

	"scuda.dev/scuda/api"
)

// A program that looks for the newest form of a function by itself tries the name with _v2 and then the one without it,
// and calls what it finds in the way it knows. A library cannot leave out names by the driver of a server that it
// learns of later; so with a driver from before the _v2 form, that name is the function without it, as for this program
// it would be.

// inRegisters is the number of words that a call passes in registers; more would lie where another signature does not
// look.
const inRegisters = 6

// older is the function that f is with drivers before version since; nil: f is always itself.
func (c *cfront) older(f *api.Func) (*api.Func, int) {
	name, form := f.Name, ""
	if f.PTSZ {
		name, form = f.Base, strings.TrimPrefix(f.Name, f.Base)
	}
	plain, ok := strings.CutSuffix(name, "_v2")
	base := c.lib.ByName[plain+form]
	since, known := c.since[f.Name]
	if !ok || base == nil || base.NoProto || !known || since <= oldestDriver || c.since[base.Name] >= since ||
		plain == "cuGetProcAddress" || len(base.Params) > inRegisters {
		return nil, 0
	}
	return base, since
}

// oldestDriver is the version of the oldest driver that a server may have.
const oldestDriver = 11040
