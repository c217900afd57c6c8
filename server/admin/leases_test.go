package admin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/server/lease"
)

func TestAskForLeases(t *testing.T) {
	f := &fake{}
	c, _ := offer(t, f, Options{})
	ctx := t.Context()
	list, err := c.Leases(ctx)
	if err != nil || len(list) != 1 || list[0].Label != "job" || list[0].Share != lease.UsualShare || list[0].Open != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	want := LeaseRequest{Tenant: "a", GPUs: "2", Memory: 1 << 30, Sessions: 1, Share: 5, Class: "high", Seconds: 1.5}
	g, err := c.Grant(ctx, &want)
	if err != nil || g.Credential != "secret" || g.ID != "bb11" || len(f.wanted) != 1 || f.wanted[0] != want ||
		want.Lasts() != 1500*time.Millisecond {
		t.Errorf("%+v, %v; wanted was %+v", g, err, f.wanted)
	}
	for _, c2 := range []struct{ refuses, want error }{
		{fmt.Errorf("%w: a share of 0", lease.ErrTerms), lease.ErrTerms}, {lease.ErrFull, nil}, {lease.ErrKept, nil},
	} {
		f.refuses = c2.refuses
		if _, err := c.Grant(ctx, &want); err == nil || err.Error() != c2.refuses.Error() ||
			c2.want != nil && !errors.Is(err, c2.want) {
			t.Errorf("%v: %v", c2.refuses, err)
		}
		if _, err := c.Renew(ctx, "bb11", time.Minute); err == nil || err.Error() != c2.refuses.Error() ||
			c2.want != nil && !errors.Is(err, c2.want) {
			t.Errorf("renewed, %v: %v", c2.refuses, err)
		}
	}
	f.refuses = fmt.Errorf("%w: a GPU", lease.ErrTaken)
	if _, err := c.Grant(ctx, &want); !errors.Is(err, lease.ErrTaken) || !strings.Contains(err.Error(), "wait until") {
		t.Errorf("of a GPU that is taken: %v", err)
	}
	f.refuses = nil
	if l, err := c.Renew(ctx, "bb11", 90*time.Second); err != nil || l.ID != "bb11" ||
		f.wanted[len(f.wanted)-1].Seconds != 90 {
		t.Errorf("%+v, %v; wanted was %+v", l, err, f.wanted)
	}
	if _, err := c.Renew(ctx, "bb", time.Minute); !errors.Is(err, lease.ErrNone) {
		t.Errorf("renewed what there is not: %v", err)
	}
	if err := c.Revoke(ctx, "bb11", "over"); err != nil || len(f.ended) != 1 || f.ended[0] != "aa11 over" {
		t.Errorf("%q, %v", f.ended, err)
	}
	for _, id := range []string{"bb", "", "../sessions"} {
		if err := c.Revoke(ctx, id, ""); err == nil || id == "bb" && !errors.Is(err, lease.ErrNone) {
			t.Errorf("revoke %q: %v", id, err)
		}
	}
	if err := c.Revoke(ctx, "bb11", strings.Repeat("x", MaxReason+1)); !errors.Is(err, lease.ErrTerms) {
		t.Errorf("a reason that is too long: %v", err)
	}
}
