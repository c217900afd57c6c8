// Package queue says which of the clients that wait for a place on a server is next, and how long that may take. The
// supervisor calls it: it tells the queue who comes and goes, and asks it whenever a place may have come free.
//
// The order is by class, then by what the tenants have used of late (each by its weight), then by arrival. Whoever may
// not have a place yet for a reason of its own, such as its tenant's limit, is passed by others; whoever needs more
// memory than there is, too, but not for ever.
//
// The package is state and nothing else: no goroutines, no clock, no locks. The caller has one lock around all of it,
// and says what time it is.
package queue
