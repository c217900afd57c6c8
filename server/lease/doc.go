// Package lease says who may use what of a server, and for how long. A [Lease] names a tenant and the [Terms] of its
// sessions: which GPUs they see, how much memory, how many at once, and what they are worth beside others. Who makes a
// lease gets a credential once, which opens sessions under this lease only.
//
// The supervisor owns the [Book] of them. It asks at each handshake whose a credential is, and ends the sessions of
// leases that are over; the admin interface makes, lists and revokes leases. The terms of sessions without a lease come
// from the tenants file (package tenant), in the same words.
//
// A book keeps its leases in a file, so that they outlive the server. It has no credential, only the SHA-256 of each:
// who reads the file opens no session. Leases that are over stay for a day, so that those who still present their
// credential are told what became of them. Others learn nothing: to them a lease's credential is a wrong token.
//
// Book.mu is a leaf. It is held while the file is written.
package lease
