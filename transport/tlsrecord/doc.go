// Package tlsrecord is the record layer of TLS 1.3 (RFC 8446, sections 5 and 7.2) for connections whose handshake
// crypto/tls has made and whose bytes other threads, or another process, then carry.
//
// Why not crypto/tls to the end: a [crypto/tls.Conn] cannot be handed to another process, it blocks, and it reads and
// writes the socket by itself. scuda's supervisor shakes hands and a worker goes on; both sides drive the main
// connection without blocking. What is ours is small: the keys that follow from a traffic secret, a record's header,
// nonce and content type, and KeyUpdate. The ciphers are those of crypto/cipher and golang.org/x/crypto.
//
// [Handshake] makes the handshake and gives a [Stream]. A Stream is the connection's state without its socket: whoever
// holds it says what came ([Inbound.Received]) and sends what is pending ([Outbound.Pending]). It does no input or
// output and has no locks. [Stream.Export] and [Resume] carry it to another process.
//
// Its two halves are independent but for one bit: a peer that wants our keys renewed says so to the half that
// receives. So one thread may use Inbound while another uses Outbound.
//
// There are no session tickets and no early data. A key is renewed before it has protected 2^23 records, of at most
// 16 KiB each; the standard asks for that before 2^24.5.
package tlsrecord
