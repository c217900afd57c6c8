// Package executor carries out one session: it reads the client's command stream, calls the driver and answers.
//
// One OS thread, the executor, does all of it in the order of the stream. It does not wait in the driver for the GPU, unless the driver makes it:
//
//   - A synchronising call becomes a [wait]: events recorded behind what it covers, polled between commands.
//   - Uploads are copied from pinned staging slots (or, small, by the driver's own staging); a slot is free again when its event has fired.
//   - Downloads are enqueued in chunks over staging slots; a chunk whose event has fired becomes a DATA message.
//   - What must come from the client in stream order (host functions, deferred uploads) is a host function on the stream, which asks over
//     the side connection on the driver's own thread. What the client needs for its answer is not the executor's to send; see [lateDownloads].
//
// So a slow kernel delays only who waits for it. The order in which the client sees things is kept by one rule: before any answer is queued,
// all downloads that have finished by then are queued (see [Session.answer]).
//
// Memory that the driver sees is mapped outside the Go heap (memory_unsafe.go).
package executor
