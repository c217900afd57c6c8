package main

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"scuda.dev/scuda/transport"
)

var le = binary.LittleEndian

const mostBytes = 2 << 20 // of a session

// odd is a number at which lengths and counts go wrong.
func odd(rnd *rand.Rand) uint64 {
	if rnd.IntN(2) == 0 {
		return 1<<rnd.IntN(64) - uint64(rnd.IntN(3)) + 1
	}
	return []uint64{0, 1, ^uint64(0), 2, 4, 1 << 31, 1 << 32, 1 << 63, 1<<32 - 1, 1<<63 - 1}[rnd.IntN(10)]
}

// spoil changes bytes somewhere in b, whose length stays.
func spoil(b []byte, rnd *rand.Rand) {
	if len(b) == 0 {
		return
	}
	at := rnd.IntN(len(b))
	switch rnd.IntN(4) {
	case 0:
		b[at] ^= 1 << rnd.IntN(8)
	case 1:
		b[at] = byte(rnd.Uint32())
	case 2:
		var v [8]byte
		le.PutUint64(v[:], odd(rnd))
		copy(b[at&^3:], v[:4<<rnd.IntN(2)])
	case 3:
		for i := range b[at:min(len(b), at+1+rnd.IntN(16))] {
			b[at+i] = byte(rnd.Uint32())
		}
	}
}

// commands makes the commands of a session from recorded ones with some changes, and says where in the stream each of
// the recorded ones lies now.
func (r *recording) commands(rnd *rand.Rand, changes int) (list []command, moved map[uint64]uint64) {
	n := min(len(r.Commands), 20+rnd.IntN(1480))
	if changes == 0 {
		n = len(r.Commands)
	}
	for i, size := 0, 0; i < n && size < mostBytes; i++ {
		c := r.Commands[i]
		size += len(c.Text) + len(c.Bulk)
		list = append(list, command{slices.Clone(c.Text), c.Bulk})
	}
	old := map[*byte]uint64{} // by the place where the text lies
	for _, c := range list {
		old[&c.Text[0]] = le.Uint64(c.Text[8:])
	}
	for range changes {
		if len(list) > 0 {
			list = change(list, rnd)
		}
	}
	if rnd.IntN(20) == 0 { // with the numbers that came of it
		return list, nil
	}
	moved = map[uint64]uint64{}
	var at, own uint64
	for _, c := range list {
		if le.Uint32(c.Text[24:]) == transport.CoreThread { // these have numbers of their own
			own++
			le.PutUint64(c.Text[8:], own)
			continue
		}
		if was, ok := old[&c.Text[0]]; ok {
			moved[was] = at
		}
		le.PutUint64(c.Text[8:], at)
		at += uint64(len(c.Text))
	}
	return list, moved
}

// stream is what commands are on the wire.
func stream(list []command) (out []byte) {
	for _, c := range list {
		out = transport.FrameHeader{Len: uint32(len(c.Text))}.Append(out)
		out = append(append(out, c.Text...), c.Bulk...)
	}
	return out
}

// change changes a list of commands at one place.
func change(list []command, rnd *rand.Rand) []command {
	i := rnd.IntN(len(list))
	c := &list[i]
	words := len(c.Text) / 8
	set := func(v uint64) { le.PutUint64(c.Text[8*rnd.IntN(words):], v) }
	some := func() uint64 {
		other := list[rnd.IntN(len(list))].Text
		return le.Uint64(other[8*rnd.IntN(len(other)/8):])
	}
	switch rnd.IntN(12) {
	case 0, 1:
		set(odd(rnd))
	case 2, 3: // a foreign handle, an address, a size of another command
		set(some())
	case 4:
		spoil(c.Text, rnd)
	case 5: // another operation with the same payload
		le.PutUint16(c.Text[4:], le.Uint16(list[rnd.IntN(len(list))].Text[4:]))
	case 6:
		list = slices.Insert(list, rnd.IntN(len(list)), command{slices.Clone(c.Text), c.Bulk})
	case 7:
		list = slices.Delete(list, i, i+1)
	case 8:
		j := rnd.IntN(len(list))
		list[i], list[j] = list[j], list[i]
	case 9: // flags, thread, context
		at := []int{6, 16, 24}[rnd.IntN(3)]
		c.Text[at] = byte(rnd.Uint32())
	case 10:
		if len(c.Bulk) > 0 {
			c.Bulk = c.Bulk[:rnd.IntN(len(c.Bulk))&^7]
		} else {
			set(some() + uint64(rnd.IntN(3)) - 1)
		}
	case 11: // a shorter or longer payload
		n := transport.Pad(rnd.IntN(len(c.Text) + 64))
		if n = max(n, transport.CommandHeaderSize); n <= len(c.Text) {
			c.Text = c.Text[:n]
		} else {
			c.Text = append(c.Text, make([]byte, n-len(c.Text))...)
		}
		le.PutUint32(c.Text, uint32(n))
	}
	return list
}

// spoilMessages changes something in messages that follow each other, or their order.
func spoilMessages(list [][]byte, rnd *rand.Rand) [][]byte {
	if len(list) == 0 {
		return list
	}
	i := rnd.IntN(len(list))
	switch rnd.IntN(7) {
	case 0:
		list = slices.Delete(list, i, i+1)
	case 1:
		list = slices.Insert(list, i, list[i])
	case 2:
		j := rnd.IntN(len(list))
		list[i], list[j] = list[j], list[i]
	case 3:
		list[i] = list[i][:rnd.IntN(len(list[i]))]
	default:
		list[i] = slices.Clone(list[i])
		if rnd.IntN(2) == 0 {
			spoil(list[i][:transport.MessageHeaderSize], rnd)
		} else {
			spoil(list[i], rnd)
		}
	}
	return list
}
