// Package admin is the interface by which a server is looked into and told what to do on its own machine: HTTP and
// JSON over a Unix socket. The supervisor opens it ([Open]) and gives it a [Server], which has all the facts; the
// command line asks by a [Client]. The package owns the socket and its connections, and holds no state of sessions.
//
//	GET  /v1/server               Status
//	GET  /v1/sessions             {"sessions": [Session, ...]}
//	POST /v1/sessions/{id}/end    {"reason": TEXT}; the answer is {} when the session is over
//	PUT  /v1/drain                {"on": true or false}; Status
//	GET  /v1/usage?since=&by=     Usage
//
// Whatever is refused is answered by a [Fault]: what is wrong, and what to do. Only root and the server's own user are
// let in, by what the kernel says of a connection's other end; a worker is not, though it may have the server's user.
// Bodies, headers, times and connections are bounded. A path keeps its meaning for as long as its first part (v1).
package admin
