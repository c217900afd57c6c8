package admin

import (
	"net/http"
	"strings"

	"scuda.dev/scuda/server/door"
)

// route is something that can be asked for.
type route struct {
	pattern string // of [http.ServeMux]
	// keeps is what nobody but administrators may do, in words; "": everybody may, with what is theirs.
	keeps   string
	changes bool // something, so that it stands in the log
	do      func(*handler, http.ResponseWriter, *http.Request, Who)
}

// routes are all that can be asked for. A test has a row for each, which says what it answers to whom.
var routes = []route{
	{"GET /v1/server", "", false, (*handler).status},
	{"GET /v1/sessions", "", false, (*handler).sessions},
	{"POST /v1/sessions/{id}/end", "", true, (*handler).end},
	{"PUT /v1/drain", "drain the server", true, (*handler).drain},
	{"GET /v1/usage", "", false, (*handler).usage},
	{"GET /v1/leases", "", false, (*handler).leases},
	{"POST /v1/leases", "", true, (*handler).grant},            // but with a lease's credential
	{"POST /v1/leases/{id}/renew", "", true, (*handler).renew}, // likewise
	{"DELETE /v1/leases/{id}", "", true, (*handler).revoke},
}

// offered names them for people.
func offered() string {
	var names []string
	for _, r := range routes {
		names = append(names, strings.ReplaceAll(r.pattern, "{id}", "ID"))
	}
	return strings.Join(names, ", ")
}

// serve answers a request for a route, and notes who asked for what, and with what outcome.
func (h *handler) serve(at route, w http.ResponseWriter, r *http.Request, who Who) {
	n := &noted{w, http.StatusOK}
	if at.keeps != "" && who.Role() != RoleAdmin {
		refuse(n, http.StatusForbidden, who.String()+" may not "+at.keeps, notAdmin(who))
	} else {
		at.do(h, n, r, who)
	}
	if h.Count != nil {
		h.Count(at.pattern, who.Role(), n.status)
	}
	if !at.changes {
		return
	}
	args := []any{"request", at.pattern, "id", door.Clip(r.PathValue("id"), maxID), "who", who.String(), "from", who.From,
		"status", n.status}
	if who.Role() != RoleAdmin && n.status != http.StatusOK { // there is no end of what they can ask for in vain
		missed, ok := h.vain.Allow()
		if !ok {
			return
		}
		args = append(args, "left_out", missed)
	}
	h.Log.Info("admin request", args...)
}

// maxID is how much of what should be an id stands in the log.
const maxID = 40

// notAdmin says what somebody can do who is no administrator.
func notAdmin(who Who) string {
	if who.Role() == RoleLease {
		return "a lease's credential is never an administrator's; use that of a tenant with role=admin"
	}
	return "role=admin in the server's tenants file lets a tenant do it, and so does the admin socket on its machine"
}

// noted is a writer that knows the status.
type noted struct {
	http.ResponseWriter
	status int
}

func (n *noted) WriteHeader(status int) {
	n.status = status
	n.ResponseWriter.WriteHeader(status)
}
