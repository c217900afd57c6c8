// Package usage says what sessions have used of a server: GPU time, memory, bytes copied. The supervisor meters its
// sessions with it and writes them into a log, a JSON object a line; `scuda usage` reads that and adds it up.
//
// A [Meter] belongs to the goroutine that samples it; a [Log] and [Totals] may be used by several at once, and have a
// lock of their own each.
package usage
