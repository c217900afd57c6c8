// Package timeline makes one picture of what a program did over scuda, by one clock: its calls and what they waited
// for, the way over the network, the queue on the server, the GPU's kernels and copies, and why the GPU had nothing to
// do. `scuda trace --kernels` calls it.
//
// The client's libraries write a file for each process while the program runs (shim/front/base/events.h). [Read] reads
// such a file, [Build] joins those of a program to a [Timeline]. That is written as a file for Perfetto and Chrome's
// tracing page ([Timeline.Chrome]), as a table ([Timeline.Table]) and as a page ([Timeline.HTML]). [Explain] names the
// causes of idle time; it is a function of intervals alone.
//
// The package starts nothing and keeps nothing. A timeline takes some 4 times the memory of its files, of which a
// process writes 256 MiB at most.
package timeline
