// Command fuzz attacks servers and clients with recorded sessions in which it changes something, for as long as it is
// told to. `make fuzz` builds what it needs and starts it; `.ci/full` runs it for long; its test makes a few cases of
// every kind.
//
// It records what programs of e2e/programs say to a server with the simulated GPU, and makes cases of that. A case has
// a kind, and is made from the run's seed and the case's number alone:
//
//   - cuda: the commands of a session, with a callback connection that answers wrongly, and bulk connections
//   - nvml: the same for NVML
//   - door: openings of connections, with and without TLS: prefaces, TLS records, tokens, tickets
//   - answers: a proxy changes what the server says, and a real program has to live with it
//   - tls: a proxy changes the records of TLS, in both directions, under a real program
//   - native: the fuzz functions of the repository's packages, each for a share of the time
//
// What must not happen is a finding: the supervisor ends, a worker crashes, a program is ended by a signal, the
// client's library panics, a program sees wrong data and success where nobody changed the data, somebody is admitted
// who may not be, and whatever is still there once all sessions have ended (descriptors, goroutines, processes, memory
// files, memory of the GPU). What led to a finding is kept in a folder of its own, with the recordings, from which
// `-corpus FILE -seed SEED -only KIND -case NUMBER` makes the same case again.
package main
