// Package resume is the account by which a byte stream outlives the sockets that carry it: every byte arrives once and
// in order, whichever socket breaks at whichever byte. It has no input, output, time or locks. What sends and receives
// (package transport) drives it, as it drives the record layer of TLS; its tests drive it with an invented network.
//
// # Records
//
// On a socket the stream travels in records: a [Header], and as many bytes of the stream as that says. Each header also
// says how many bytes of the other direction its sender has received. A record without bytes only says that, and a
// [Farewell] that the stream ends in order: who does not hear it takes a closed socket for a lost one.
//
// # Keeping
//
// An [Out] keeps what it was given until the peer has received it, in memory of a fixed size: the window. Where that is
// full, nothing more can be written before the peer says that it has received some. An [In] counts bytes when they are
// read from it, as what lies in its buffer is lost with the socket.
//
// # Another socket
//
// Each socket of a stream is an *epoch*, a number that grows. Both sides stop using the old socket before they say how
// much they have received, and begin the next one with what the other has not ([Out.Resume], [In.Resume]). A socket of
// an earlier epoch is refused ([Epoch.Admit]), and nobody reads one that comes back to life.
package resume
