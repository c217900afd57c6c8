package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/server/admin"
)

const serves = "none is configured for programs, but this machine serves"

// serving looks at the server of this machine, over its admin socket. It gives false where there is none.
func (c *checks) serving(ctx context.Context, socket string) bool {
	own, err := admin.Dial(ctx, socket)
	switch {
	case errors.Is(err, admin.ErrNoServer), errors.Is(err, admin.ErrSwitched):
		return false
	case errors.Is(err, admin.ErrForbidden):
		c.add(noted, "server", fmt.Sprintf("%s, to others than this user: %v", serves, err),
			"sudo scuda doctor looks at it; for programs of this user run scuda login HOST:PORT")
		return true
	case errors.Is(err, admin.ErrSeveral):
		c.add(noted, "server", fmt.Sprintf("%s: %v", serves, err), "scuda doctor --admin SOCKET looks at one of them")
		return true
	case err != nil:
		c.add(failed, "server", fmt.Sprintf("%s: %v", serves, err), "look into the server's log")
		return true
	}
	defer own.Close()
	began := time.Now()
	st, err := own.Status(ctx)
	if err != nil {
		c.add(failed, "server", fmt.Sprintf("%s: %v", serves, err), "look into the server's log")
		return true
	}
	trip := time.Since(began)
	c.add(good, "server", fmt.Sprintf("%s on %s (asked by %s)", serves, st.Address, own.Path), "")
	c.add(good, "reachable", "its admin interface answers in "+seconds(trip.Seconds()), "")
	c.judge(st.Version == release.Version(), noted, "versions",
		fmt.Sprintf("server %s, this program %s", st.Version, release.Version()),
		"the server is of before the upgrade: start it again")
	names := make([]string, len(st.GPUs))
	for i, g := range st.GPUs {
		names[i] = g.Name
	}
	c.judge(len(st.GPUs) > 0, failed, "GPUs", cmp.Or(strings.Join(names, ", "), "none"),
		"the server has none to give: look at nvidia-smi here")
	taken := fmt.Sprintf("%d of CUDA", st.CUDA.Taken)
	if st.CUDA.Limit > 0 {
		taken += fmt.Sprintf(" (%d places)", st.CUDA.Limit)
	}
	c.judge(!st.Draining, noted, "sessions", taken+map[bool]string{true: "; it takes no new ones"}[st.Draining],
		"scuda drain --undo takes new ones again")
	return true
}
