// Package fleet knows the servers whose GPUs a cluster gives out. It asks each of them every few seconds how it is and
// what leases it has, says what ResourceSlices that makes, and takes and gives back leases. The controller (package
// claims) owns a [Fleet] and is told when something has changed.
//
// A server alone is the authority for its leases: what is known of them here is a copy, which each answer replaces.
// Lock order: member.turn (one question about leases at a time), member.mu, which is a leaf. Fleet.mu is held while
// members are looked up only.
package fleet
