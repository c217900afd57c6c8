// Package commons is memory that the sessions of one tenant share. Each has a place there and says two things in it:
//
//   - How far it has carried its client's commands out. Sessions that share memory of the GPU go by it: what one
//     program saw return before it told another stands before what the other asks for then.
//   - How much of the GPUs' memory it has. The tenant's sessions together keep within their limit by it (memory.go).
//
// The supervisor makes it for a tenant's first session, gives out the places ([Tenants]), and clears those of sessions
// that are over. A worker gets it with its session, and finds there what the other workers of its tenant say ([Seat]).
// Whoever takes a worker over can write all of it. So it is one for each tenant, and the supervisor's account of
// places does not lie in it. Such a worker could have as much memory of the driver without asking anybody, so that the
// sessions keep their account themselves costs nothing.
//
// Tenants.mu is a leaf, and so is the lock of the file by which workers take turns in their account. The kernel takes
// that from a worker that ends.
package commons
