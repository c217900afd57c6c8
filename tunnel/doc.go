// Package tunnel serves one program from a machine where nothing is installed, through one command that runs something
// there: ssh, or what starts programs in a container. `scuda run --on` is its user.
//
// It has two sides, which speak over the command's standard input and output.
//
//   - The near side ([Carry]) is a process beside the program. It runs the command with a script ([script]), which
//     starts the copy of scuda that lies in the user's cache there, or first takes one from the near side. It listens
//     on loopback, and carries the program's connections.
//   - The far side ([Serve]) is that copy: a server on loopback for those who have the token, which the near side made
//     for this run. It ends when its input does.
//
// Where the program wishes it, and the hosts reach each other, its connections go directly to the server, which then
// listens for other machines as well: under TLS, with a key that came by the command (reach). The command stays: it is
// what both sides end with.
//
// Both sides' connections share the one stream of bytes as frames ([Header]). Each has a window of its own, so that one
// that nobody reads stops no other: a session's connections wait for each other.
//
// Locks: a stream's is the innermost; the mux's own may be held when it is taken. The one for writing is never held
// with them. Who reads frames never writes any, so the two directions cannot wait for each other.
package tunnel
