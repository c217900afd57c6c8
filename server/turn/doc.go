// Package turn says whose turn it is to hand work to a GPU, where sessions with different rights want it at the same
// time.
//
// A driver lets the contexts of different processes take turns, evenly for each context, and nothing in it changes
// that. So weights and classes are made before the driver: a worker whose turn it is not keeps its client's launches
// and copies back. [Turns] decides, from what the workers say of themselves and from the time alone: it is a pure
// state, which its caller guards. A [Slot] is the memory in which a worker and the supervisor tell each other: the
// supervisor writes the worker's word there, the worker what it does. A worker that lies, or does not look at its word,
// gets more than its share, and can do no more than that.
//
// The sessions of one lease, or of a tenant without one, are a party, and take their turns together. The rules:
//
//   - Parties that use different GPUs do not take turns, nor do those whom the driver treats as they are entitled to
//     anyway: of the same class, and of the same share for each session. Where nobody takes turns, words are 0.
//   - A higher class goes first, for as long as it has work, and a moment longer ([Rules.Linger]): a program's next
//     launch is often only microseconds away.
//   - Within a class the party is next that has used the least for its share. It gives way when it is a window ahead.
//   - Who has waited for [Rules.Longest] gets one window before everybody else.
//   - Who has nothing to do holds no turn.
//
// What a party uses of a GPU is a guess: the time in which its sessions have work there. Where several have, as when a
// turn has just gone from one to another, each is taken to get an equal part of it, as drivers do it.
package turn
