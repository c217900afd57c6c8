// Package verbs is a binding of libibverbs, the Linux interface to RDMA hardware (InfiniBand, RoCE, and rxe, its
// emulation in software). The library is opened when it is first needed, so a program that imports this package starts
// on machines without it; [Devices] then returns an error that wraps [ErrUnavailable].
//
// # Objects
//
// A [Device] is opened by name. On it live a protection domain ([PD]), completion queues ([CQ]) and, in the domain,
// registered memory ([MR]), memory windows ([MW]), shared receive queues ([SRQ]) and queue pairs ([QP]). What was made
// from something has to be closed before it; Close says EBUSY otherwise. Two queue pairs are joined by exchanging their
// [Endpoint] over any other connection and calling [QP.Connect] on both sides.
//
// # Transfers
//
// Work is posted in batches ([QP.PostSend], [QP.PostRecv]) and its completions are taken in batches ([CQ.Poll]); each
// is one call into C, whatever the number, and none allocates. [CQ.Wait] sleeps until there is something to poll.
// Registered memory has to stay mapped until its registration is closed, and what a posted request names must not
// change before its completion.
//
// # Errors
//
// A call that fails gives an [*Error] with the name of the call and its errno; where the cause is known (the memlock
// limit, missing permission) the message names the remedy. A request that fails gives a [Completion] whose [Status] is
// not [StatusOK] and whose Err is a [*StatusError].
package verbs
