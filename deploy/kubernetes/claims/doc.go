// Package claims gives each allocated claim its lease. A [Controller] watches ResourceClaims and a fleet of servers.
// For a claim whose devices are GPUs of a server it has a lease made there, puts the credential into a secret of the
// driver's namespace, and says so in the claim's status, for which the pod waits. When the claim is released or gone,
// it revokes the lease and deletes the secret.
//
// Nothing is remembered beside the objects themselves: the leases carry the claim's UID in their label, the secrets in
// theirs. So a controller that starts anew finds what one before it has left, whatever it was doing when it ended. A
// lease whose secret was never written is revoked, as nobody knows its credential.
//
// Locks: none of its own but those of the queue; one claim is worked on by one goroutine at a time.
package claims
