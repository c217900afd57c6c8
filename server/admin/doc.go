// Package admin is the interface by which a server is looked into and told what to do: HTTP and JSON, over a Unix
// socket of its own machine, and over connections of its port. The supervisor makes it ([New]) of a [Server], which has
// all the facts, and hands over connections that have shown who they are. The command line and cluster managers ask by
// a [Client] ([Dial], [Over]). The package owns the socket and the connections, and holds no state of sessions.
//
//	GET  /v1/server               Status
//	GET  /v1/sessions             {"sessions": [Session, ...]}
//	POST /v1/sessions/{id}/end    {"reason": TEXT}; the answer is {} when the session is over
//	PUT  /v1/drain                {"on": true or false}; Status
//	GET  /v1/usage?since=&by=     Usage
//
//	GET  /v1/leases               {"leases": [Lease, ...]}
//	POST /v1/leases               LeaseRequest; Granted
//	POST /v1/leases/{id}/renew    {"seconds": N}; Lease
//	DELETE /v1/leases/{id}        {"reason": TEXT}; the answer is {} when its sessions are over
//
// Whatever is refused is answered by a [Fault]: what is wrong, and what to do. By the socket only root and the server's
// own user are let in, by what the kernel says of a connection's other end; a worker is not, though it may have the
// server's user. Over the port everybody is let in whom the server knows: a tenant with the role for it as an
// administrator, all others to what is theirs ([Who]). Who that is is asked anew for each request. Bodies, headers,
// times and connections are bounded. A path keeps its meaning for as long as its first part (v1).
package admin
