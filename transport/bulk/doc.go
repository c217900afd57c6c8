// Package bulk carries the bytes of big copies beside a session's main connection: chunks of numbered transfers, over
// several TCP connections and, where there is one, a better way (RDMA). Client and server use it alike; it knows
// nothing of CUDA.
//
// A [Sender] takes chunks to the peer and a [Receiver] is what they arrive at. [TCP] is a sender, package rdma has
// others, and bulktest has senders in memory. None of the interfaces speaks of sockets.
//
// Sending: an [Outbound] has the transfers of one side. It decides by what sender each piece goes: by the preferred
// one while that is up, else by the fallbacks. What the preferred sender gives back, because its path was lost before
// the bytes arrived, goes by the fallbacks, and no other byte goes twice. On each fallback pieces stand in the order
// of their transfers, on which the receiving side relies.
//
// Receiving: an [Inbound] lends memory for one transfer after the other; [Arrivals] counts what has arrived where
// every transfer has memory of its own.
//
// Locks: those of Outbound, Inbound and Arrivals are taken by themselves; none is held while a sender or a receiver is
// called, but for [Sender.State], [Sender.Register] and [Owner.Sent], during which Outbound's is held.
package bulk
