// Package perf measures scuda and compares measurements.
//
// A [Suite] is data (suite.json): entries that say which program runs with which sizes, where (natively, over TCP, over
// RDMA, on a simulated GPU) and with which further delay of the network. [Run] carries it out in interleaved
// repetitions and gives a [Result], which says on what machine and by which commands it was made. [Compare] compares
// two results, [HTML] and [Markdown] write a report.
//
// A repetition of a measure gives one value, the median of what its program timed; what is between the repetitions is
// noise of the machine, and it is that noise which a comparison has to look at. All timed operations of all repetitions
// together are in the measure's distribution.
package perf
