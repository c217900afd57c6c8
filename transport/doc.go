// Package transport carries a session's bytes between a client and a server. It knows no CUDA.
//
// A connection opens with a [Preface] (token and [Hello]) that the server answers with a [Welcome]; docs/protocol.md
// has the bytes. After that the client sends frames of commands ([FrameHeader], [CommandHeader]) and the server sends
// messages ([MessageHeader]).
//
// The codecs are pure: AppendX appends bytes to a slice, ParseX reads them from one and says how many it used. [Dial]
// connects and shakes hands; [Listen] and [ReadPreface] are the server's half. A [Conn] is the established byte stream
// as the engines of both sides drive it: calls that never block and an explicit wait, so that the thread which needs an
// answer does the system calls itself.
//
// Every failure to open a connection is an [*Error]: it wraps one of the Err sentinels, and its text names cause and
// remedy.
package transport
