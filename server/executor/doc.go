// Package executor carries out one session: it reads the client's command stream, calls the driver and answers. A
// worker process makes a [Session] of a connection, attaches the session's other connections as they come, and runs it.
//
// # The loop and its engines
//
// Session is the loop: it reads commands, hands each to the method that carries it out, answers, and looks between
// commands at what is under way (poll.go). Subjects of the driver are engines with a state of their own. What they all
// build on is base: the driver, memory for arguments, handles, contexts, streams, the launches that were read and not
// yet made. Above it are objects, hostmem, modules, printf, graphs, copies, waits and ordering. An engine asks the loop
// through an interface of at most ten methods, which stands beside it. docs/architecture.md has a table of all, with
// their files.
//
// It does not wait in the driver for the GPU, unless the driver makes it:
//
//   - A synchronising call becomes a [wait]: events recorded behind what it covers, polled between commands.
//   - Uploads are copied from pinned staging slots (or, small, by the driver's own staging); a slot is free again when
//     its event has fired.
//   - Downloads are enqueued in chunks over staging slots; a chunk whose event has fired becomes a DATA message.
//   - What must come from the client in stream order (host functions, deferred uploads) is a host function on the
//     stream, which asks over the callback connection on the driver's own thread. What the client needs for its answer
//     is not the executor's to send; see [lateDownloads].
//
// So a slow kernel delays only who waits for it. The order in which the client sees things is kept by one rule: before
// any answer is queued, all downloads that have finished by then are queued (see [Session.answer]).
//
// # Threads
//
// One OS thread, the executor, carries out all commands in the order of the stream. It alone makes calls of the driver
// and uses the engines' state, but for what is named here:
//
//   - Threads of the driver run host functions: they ask the client over the callback connection and wait there, and
//     call no driver. The destructors of user objects only add to graphs.ended.
//   - The reader of the callback connection answers FLUSH: it sends late downloads and makes no call of the driver.
//   - Each bulk connection has a goroutine that receives into staging slots and one that sends out of them. RDMA's
//     goroutines tell of chunks that arrived or were sent.
//   - A goroutine reads a large image (scan), and one pushes queued output while the executor is held up.
//   - The worker's listener attaches connections, and stops the session. A goroutine opens RDMA: it asks the driver for
//     memory of its own, on another OS thread.
//
// # Lock order
//
// The executor's state has no locks. Where two locks are held, they were taken in this order: lateDownloads.mu or
// transfers.mu, then locks of package bulk and of RDMA's link, output.mu. callback.mu, callback.write, path.openMu and
// graphs.endedMu are held alone. No call of the driver is made while a lock is held: the driver may keep its caller
// until a function has run that needs the lock.
//
// Memory that the driver sees is mapped outside the Go heap (memory_unsafe.go).
package executor
