// Package rdma carries the bytes of big copies by RDMA. A [Link] joins the two sides of a session; it uses package
// verbs for the path, package ring for the account of what has arrived, and a TCP connection, the *control connection*,
// for everything else: setting the path up, credits, windows, farewells.
//
// A chunk goes either into one of the receiver's slots (uploads, into memory that the server's GPU reads) or into a
// *window*: memory of the receiver's program for which it gave a key for the time of one transfer (downloads). Before
// each chunk its [Chunk] header is written into a ring of headers at the receiver; the write of the chunk itself
// carries an immediate value, by which the receiver is told.
//
// The client opens paths, and opens another one when the last was lost. Every path has a protection domain,
// registrations and queue pair of its own, so its keys end with it. What was not finished when a path was lost is given
// back ([Handler.Sent]) and has to be sent by other means; ring says why nothing gets lost or comes twice.
package rdma
