// Package lab tests the pool as a whole: processes of scuda-pool with an etcd of their own or a site's, servers with
// simulated GPUs, and what goes wrong between them. Only the programs that the tests start import etcd's server; with
// the race detector it would take minutes to build.
package lab
