package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// by gives a handler who asks over the network.
func by(who Who) Caller {
	return Caller{Address: "192.0.2.7:5", Now: func() (Who, error) { return who, nil }}
}

// asked has a handler answer.
func asked(h http.Handler, end any, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r = r.WithContext(context.WithValue(r.Context(), peerKey{}, end))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// allowed has a row for each route: what it answers to whom. Whoever has no right to be here gets nothing at all.
var allowed = map[string][]struct {
	path, body             string
	ops, a, b, ours, other int // status: an administrator, the owner, another tenant, the lease, another of the owner's
	holds                  string
}{
	"GET /v1/server":   {{"/v1/server", "", 200, 200, 200, 200, 200, "version"}},
	"GET /v1/sessions": {{"/v1/sessions", "", 200, 200, 200, 200, 200, "sessions"}},
	"POST /v1/sessions/{id}/end": {
		{"/v1/sessions/aa11/end", "{}", 200, 200, 404, 200, 404, ""},
		{"/v1/sessions/aa22/end", "{}", 200, 200, 404, 404, 404, ""},
		{"/v1/sessions/none/end", "{}", 404, 404, 404, 404, 404, ""},
	},
	"PUT /v1/drain":   {{"/v1/drain", `{"on":true}`, 200, 403, 403, 403, 403, ""}},
	"GET /v1/usage":   {{"/v1/usage", "", 200, 200, 200, 200, 200, "usage"}},
	"GET /v1/leases":  {{"/v1/leases", "", 200, 200, 200, 200, 200, "leases"}},
	"POST /v1/leases": {{"/v1/leases", `{"seconds":60}`, 200, 200, 200, 403, 403, ""}},
	"POST /v1/leases/{id}/renew": {
		{"/v1/leases/bb11/renew", `{"seconds":60}`, 200, 200, 404, 403, 403, "bb11"},
		{"/v1/leases/none/renew", `{"seconds":60}`, 404, 404, 404, 403, 403, ""},
	},
	"DELETE /v1/leases/{id}": {
		{"/v1/leases/bb11", "{}", 200, 200, 404, 200, 404, ""},
		{"/v1/leases/none", "{}", 404, 404, 404, 404, 404, ""},
	},
}

// Every route answers everybody as its row says; a route without a row is none.
func TestAllowed(t *testing.T) {
	people := []struct {
		name string
		end  any
		want func(ops, a, b, ours, other int) int
	}{
		{"root", peer{0, 1}, func(ops, _, _, _, _ int) int { return ops }},
		{"ops", by(Who{Admin: true, Tenant: "ops"}), func(ops, _, _, _, _ int) int { return ops }},
		{"a", by(Who{Tenant: "a"}), func(_, a, _, _, _ int) int { return a }},
		{"b", by(Who{Tenant: "b"}), func(_, _, b, _, _ int) int { return b }},
		{"lease bb11 of a", by(Who{Tenant: "a", Lease: "bb11"}), func(_, _, _, ours, _ int) int { return ours }},
		{"another lease of a", by(Who{Tenant: "a", Lease: "bb"}), func(_, _, _, _, other int) int { return other }},
		{"a lease of an administrator", by(Who{Admin: true, Tenant: "ops", Lease: "dd"}),
			func(_, _, _, _, other int) int { return other }},
		{"a lease of another tenant", by(Who{Tenant: "b", Lease: "bb11"}),
			func(_, _, _, _, other int) int { return other }},
		{"withdrawn", Caller{Now: func() (Who, error) { return Who{Admin: true, Tenant: "ops"}, errors.New("over") }},
			func(_, _, _, _, _ int) int { return 403 }},
		{"nobody", nobody, func(_, _, _, _, _ int) int { return 403 }},
		{"nothing", nil, func(_, _, _, _, _ int) int { return 403 }},
	}
	for _, at := range routes {
		rows := allowed[at.pattern]
		if len(rows) == 0 {
			t.Errorf("nothing says who may ask for %s", at.pattern)
		}
		method, _, _ := strings.Cut(at.pattern, " ")
		for _, row := range rows {
			for _, p := range people {
				f := &fake{}
				h := newHandler(f, Options{Log: slog.New(slog.DiscardHandler)})
				w := asked(h, p.end, method, row.path, row.body)
				want := p.want(row.ops, row.a, row.b, row.ours, row.other)
				if w.Code != want || !strings.Contains(w.Body.String(), row.holds) && want == 200 {
					t.Errorf("%s %s by %s: %d, not %d: %s", method, row.path, p.name, w.Code, want, w.Body)
				}
				if done := f.ended != nil || f.draining || f.wanted != nil; done != (want == 200 && at.changes) {
					t.Errorf("%s %s by %s: something was done: %v", method, row.path, p.name, done)
				}
			}
		}
	}
	if len(allowed) != len(routes) {
		t.Errorf("%d rows for %d routes", len(allowed), len(routes))
	}
}

// What is somebody else's is not there.
func TestOthersAreNotSeen(t *testing.T) {
	for _, c := range []struct {
		who              Who
		sessions, leases int
	}{
		{Who{Admin: true, Tenant: "ops"}, 2, 1}, {Who{Tenant: "a"}, 2, 1}, {Who{Tenant: "b"}, 0, 0},
		{Who{Tenant: "a", Lease: "bb11"}, 1, 1}, {Who{Tenant: "a", Lease: "cc"}, 0, 0},
		{Who{Tenant: "b", Lease: "bb11"}, 0, 0}, {Who{Admin: true, Tenant: "ops", Lease: "bb11"}, 0, 0},
	} {
		h := newHandler(&fake{}, Options{Log: slog.New(slog.DiscardHandler)})
		var s sessionList
		var l leaseList
		err := errors.Join(json.Unmarshal(asked(h, by(c.who), "GET", "/v1/sessions", "").Body.Bytes(), &s),
			json.Unmarshal(asked(h, by(c.who), "GET", "/v1/leases", "").Body.Bytes(), &l))
		if err != nil || len(s.Sessions) != c.sessions || len(l.Leases) != c.leases || s.Sessions == nil || l.Leases == nil {
			t.Errorf("%v: %+v, %+v, %v", c.who, s, l, err)
		}
		var st Status
		if err := json.Unmarshal(asked(h, by(c.who), "GET", "/v1/server", "").Body.Bytes(), &st); err != nil ||
			st.Tenant != c.who.Tenant || st.Role != c.who.Role() {
			t.Errorf("%v: %+v, %v", c.who, st, err)
		}
	}
	// an answer about what is another's is that about what there is not, to the last letter
	h := newHandler(&fake{}, Options{Log: slog.New(slog.DiscardHandler)})
	for _, q := range [][2]string{{"POST", "/v1/sessions/%s/end"}, {"DELETE", "/v1/leases/%s"}} {
		ids := [2]string{"aa11", "zz99"}
		if q[0] == "DELETE" {
			ids = [2]string{"bb11", "zz99"}
		}
		for _, body := range []string{"{}", `{"reason":"\u0007"}`, `{"reason":5}`, ""} {
			var got [2]string
			for i, id := range ids {
				w := asked(h, by(Who{Tenant: "b"}), q[0], fmt.Sprintf(q[1], id), body)
				got[i] = fmt.Sprint(w.Code, " ", strings.ReplaceAll(w.Body.String(), id, "ID"))
			}
			if got[0] != got[1] {
				t.Errorf("%v, %s: %s and %s", q, body, got[0], got[1])
			}
		}
	}
}

// Who changed what stands in the log, is counted, and nobody fills the log with what they ask for in vain.
func TestRequestsAreNoted(t *testing.T) {
	var log bytes.Buffer
	counted := map[string]int{}
	h := newHandler(&fake{}, Options{Log: slog.New(slog.NewTextHandler(&log, nil)),
		Count: func(request, role string, status int) { counted[fmt.Sprint(request, " ", role, " ", status)]++ }})
	asked(h, peer{0, 7}, "POST", "/v1/sessions/aa11/end", "{}")
	asked(h, by(Who{Tenant: "a"}), "POST", "/v1/sessions/aa22/end", "{}")
	asked(h, by(Who{Tenant: "a", Lease: "bb11"}), "DELETE", "/v1/leases/bb11", "{}")
	asked(h, by(Who{Tenant: "ops", Admin: true}), "PUT", "/v1/drain", `{"on":true}`)
	asked(h, by(Who{Tenant: "a"}), "GET", "/v1/sessions", "")
	asked(h, peer{0, 7}, "GET", "/v1/nothing", "")
	for _, want := range []string{
		`request="POST /v1/sessions/{id}/end" id=aa11 who="an administrator" from="pid 7 of user 0" status=200`,
		`request="POST /v1/sessions/{id}/end" id=aa22 who="tenant a" from=192.0.2.7:5 status=200`,
		`request="DELETE /v1/leases/{id}" id=bb11 who="lease bb11 of tenant a" from=192.0.2.7:5 status=200`,
		`request="PUT /v1/drain" id="" who="tenant ops" from=192.0.2.7:5 status=200`,
	} {
		if !strings.Contains(log.String(), "msg=\"admin request\" "+want+"\n") {
			t.Errorf("the log lacks %s:\n%s", want, &log)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 4 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
	for range 1000 {
		asked(h, by(Who{Tenant: "b"}), "POST", "/v1/sessions/"+strings.Repeat("x", 1000)+"/end", "{}")
	}
	if n := strings.Count(log.String(), "\n"); n > 100 || log.Len() > 40_000 {
		t.Errorf("%d lines, %d bytes", n, log.Len())
	}
	asked(h, by(Who{Tenant: "a"}), "PUT", "/v1/drain", `{"on":true}`)
	for what, n := range map[string]int{
		"POST /v1/sessions/{id}/end admin 200": 1, "POST /v1/sessions/{id}/end tenant 200": 1,
		"DELETE /v1/leases/{id} lease 200": 1, "PUT /v1/drain admin 200": 1, "GET /v1/sessions tenant 200": 1,
		"POST /v1/sessions/{id}/end tenant 404": 1000, "PUT /v1/drain tenant 403": 1,
	} {
		if counted[what] != n {
			t.Errorf("%s: %d, not %d", what, counted[what], n)
		}
	}
	if len(counted) != 7 {
		t.Errorf("%v", counted)
	}
}

// Tenants take places from each other only up to a bound, and none from administrators.
func TestPlaces(t *testing.T) {
	p := New(&fake{}, Options{Log: slog.New(slog.DiscardHandler)})
	defer p.Close()
	fill := func(who Who) (leave []func()) {
		for {
			f, err := p.Enter(who)
			if err != nil {
				if !errors.Is(err, ErrBusy) {
					t.Fatal(err)
				}
				return leave
			}
			leave = append(leave, f)
		}
	}
	a, lease := fill(Who{Tenant: "a"}), fill(Who{Tenant: "a", Lease: "bb11"})
	if len(a) != perTenant || len(lease) != 0 {
		t.Errorf("a tenant has %d places, its lease %d", len(a), len(lease))
	}
	others := 0
	for i := range connections {
		others += len(fill(Who{Tenant: fmt.Sprint("t", i)}))
	}
	if others != connections-perTenant {
		t.Errorf("others have %d", others)
	}
	if n := len(fill(Who{Admin: true, Tenant: "ops"})); n != connections {
		t.Errorf("administrators have %d", n)
	}
	a[0]()
	a[0]()
	if n := len(fill(Who{Tenant: "z"})); n != 1 {
		t.Errorf("a place that was given back is %d", n)
	}
}
