// Package commons is memory that the sessions of one tenant share. Each has a place there, in which it says how far it
// has carried its client's commands out. Sessions that share memory of the GPU go by it: what one program saw return
// before it told another stands before what the other asks for then.
//
// The supervisor makes it for a tenant's first session, gives out the places ([Tenants]), and clears those of sessions
// that are over. A worker gets it with its session, and finds there what the other workers of its tenant say ([Seat]).
// Whoever takes a worker over can write all of it. So it is one for each tenant, nobody takes its content for more than
// a hint, and the supervisor's account of places does not lie in it.
//
// Tenants.mu is a leaf.
package commons
