// Package ring is the protocol by which two peers move messages over a path that writes into each other's memory
// (RDMA), without the path: it has no input, output, time or locks. Package transport/rdma drives it with queue pairs,
// its tests with an invented network.
//
// # Messages
//
// A [Sender] numbers its messages; the number is the *position*. A message goes into one of the receiver's slots, for
// which the sender needs a credit, or to a place that the receiver agreed to by other means. At most depth messages are
// unfinished. A message is finished when the path has said so (the memory that it was taken from is no longer read) and
// the receiver has acknowledged it (it will never have to be sent again).
//
// A [Receiver] takes messages in the order of their positions, acknowledges by their count, and hands slots out as
// credits: each belongs to the sender from its grant to the arrival of the message that uses it, and to the receiver
// from then until it is released. Slots may be released in any order, so one that is held for long delays nobody as
// long as there are others.
//
// Credits and acknowledgements travel by a reliable, ordered connection beside the path.
//
// # Loss of the path
//
// A path is used for an *epoch*. When it dies, a side stops using it (nothing arrives or is sent any more), and says so
// once, with the number of messages that it has received in this epoch. When both have said so, each knows which of its
// messages arrived: the first so many. The others are to be sent again, by whatever way there is; no message is lost
// and none arrives twice. [Peer] keeps the account.
package ring
