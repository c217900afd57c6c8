// Package fakeapi is a Kubernetes API server for tests that want one behind a connection: with the clients' own limits,
// watches that end, and a count of what is asked. It keeps objects of any kind in memory, as JSON, and knows nothing of
// what they mean but for the versions of objects, and status.devices of claims, which it takes by server-side apply.
//
// It is used by the tests of scuda-dra, which run the program itself against it.
//
// Locks: one, for everything. Who watches sleeps without it.
package fakeapi
