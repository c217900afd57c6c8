package handle

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// Some objects of the driver have numbers instead of handles, which kernels or other processes need as they are
// (texture objects, allocations of physical memory, conditions of graphs). A client has the driver's own number; what
// it sends counts only if the driver gave it to this session.

// number is what is known of one.
type number struct {
	refs   int    // how often the driver gave it: each time is to be given back
	parent uint64 // the handle that it ends with; 0: none
}

// Give notes a number that the driver gave to the session.
func (t *Table) Give(kind cuda.Kind, value, parent uint64) {
	key := reality{kind, value}
	if n := t.numbers[key]; n != nil {
		n.refs++
		return
	}
	if t.Kind(parent) == cuda.KindNone {
		parent = 0
	}
	t.numbers[key] = &number{refs: 1, parent: parent}
	if parent != 0 {
		t.numbered[parent] = append(t.numbered[parent], key)
	}
}

// Holds says whether the session was given a number and has not given it back.
func (t *Table) Holds(kind cuda.Kind, value uint64) bool {
	return t.numbers[reality{kind, value}] != nil
}

// Take notes that the session gave a number back. It is no error that it was not given it.
func (t *Table) Take(kind cuda.Kind, value uint64) {
	key := reality{kind, value}
	n := t.numbers[key]
	if n == nil {
		return
	}
	if n.refs--; n.refs > 0 {
		return
	}
	delete(t.numbers, key)
	if n.parent == 0 {
		return
	}
	if left := slices.DeleteFunc(t.numbered[n.parent], func(k reality) bool { return k == key }); len(left) > 0 {
		t.numbered[n.parent] = left
	} else {
		delete(t.numbered, n.parent)
	}
}

// endNumbers forgets the numbers that end with a handle.
func (t *Table) endNumbers(parent uint64) {
	for _, key := range t.numbered[parent] {
		delete(t.numbers, key)
	}
	delete(t.numbered, parent)
}
