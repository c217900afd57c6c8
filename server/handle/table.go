// Package handle keeps the relation between the handles in a client's hands and the values that the server's driver
// knows.
//
// A client handle is an address in one of two regions of 64-byte slots that the client reserved (docs/architecture.md,
// "Handles"): the client chooses slots of its own region for what it creates, this table chooses slots of the server
// region for objects that come into being here. Every value that a client sends is checked: garbage is not found, and
// never more than that.
package handle

import (
	"errors"
	"fmt"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// SlotBytes is the size of a slot.
const SlotBytes = 64

// MaxSlots bounds a region; the table's memory grows with the slots in use.
const MaxSlots = 1 << 24

// ErrHandle is the cause of errors about handles that break the rules.
var ErrHandle = errors.New("bad handle")

// Error says which handle and why.
type Error struct {
	Kind   cuda.Kind
	Handle uint64
	Why    string
}

func (e *Error) Error() string {
	return fmt.Sprintf("bad handle %#x of kind %s: %s; the client's library is damaged or of another version", e.Handle,
		e.Kind, e.Why)
}

// Unwrap makes errors.Is(err, ErrHandle) true.
func (e *Error) Unwrap() error { return ErrHandle }

// Region is an address range of slots.
type Region struct{ Base, Slots uint64 }

func (r Region) index(v uint64) (uint64, bool) {
	off := v - r.Base
	return off / SlotBytes, v >= r.Base && off%SlotBytes == 0 && off/SlotBytes < r.Slots
}

func (r Region) valid() error {
	if r.Base%SlotBytes != 0 || r.Slots > MaxSlots || r.Base+r.Slots*SlotBytes < r.Base {
		return fmt.Errorf("region of %d slots at %#x: %w", r.Slots, r.Base, ErrHandle)
	}
	return nil
}

type entry struct {
	kind   cuda.Kind
	real   uint64
	parent uint64
	second uint64 // another handle whose end ends this one; see Tie
}

type reality struct {
	kind cuda.Kind
	real uint64
}

const pageSlots = 1024

// Table is one session's handles. It is not safe for concurrent use: the executor alone uses it.
type Table struct {
	client, server Region
	pages          [2][]*[pageSlots]entry // of the client's and of the server's region, made when first used
	byReal         map[reality]uint64
	children       map[uint64]map[uint64]struct{}
	numbers        map[reality]*number
	numbered       map[uint64][]reality // numbers by their parents
	free           []uint64             // slots of the server region that were used before
	next           uint64               // first slot of the server region that was never used
	live           int
}

// Check says why nobody can have these regions.
func Check(client, server Region) error {
	for _, r := range []Region{client, server} {
		if err := r.valid(); err != nil {
			return err
		}
	}
	if client.Base < server.Base+server.Slots*SlotBytes && server.Base < client.Base+client.Slots*SlotBytes {
		return fmt.Errorf("handle regions overlap: %w", ErrHandle)
	}
	return nil
}

// New makes an empty table for the regions that the client's hello names.
func New(client, server Region) (*Table, error) {
	if err := Check(client, server); err != nil {
		return nil, err
	}
	t := &Table{
		client: client, server: server, byReal: map[reality]uint64{}, children: map[uint64]map[uint64]struct{}{},
		numbers: map[reality]*number{}, numbered: map[uint64][]reality{},
	}
	for i, r := range []Region{client, server} {
		t.pages[i] = make([]*[pageSlots]entry, (r.Slots+pageSlots-1)/pageSlots)
	}
	return t, nil
}

// slot finds the entry of a handle value; nil when it is in neither region or, unless make, was never used.
func (t *Table) slot(v uint64, create bool) *entry {
	which := 0
	i, ok := t.client.index(v)
	if !ok {
		if i, ok = t.server.index(v); !ok {
			return nil
		}
		which = 1
	}
	page := t.pages[which][i/pageSlots]
	if page == nil {
		if !create {
			return nil
		}
		page = new([pageSlots]entry)
		t.pages[which][i/pageSlots] = page
	}
	return &page[i%pageSlots]
}

// Real gives the driver's value of a client handle. A kernel may stand where a function is expected, as the driver
// allows.
func (t *Table) Real(kind cuda.Kind, client uint64) (uint64, bool) {
	e := t.slot(client, false)
	if e == nil || e.kind == cuda.KindNone || !fits(kind, e.kind) {
		return 0, false
	}
	return e.real, true
}

func fits(want, have cuda.Kind) bool {
	return want == have || want == cuda.KindFunction && have == cuda.KindKernel
}

// Kind says what a client handle is; KindNone when it is nothing.
func (t *Table) Kind(client uint64) cuda.Kind {
	if e := t.slot(client, false); e != nil {
		return e.kind
	}
	return cuda.KindNone
}

// Parent gives the handle whose end ends this one; 0 for none.
func (t *Table) Parent(client uint64) uint64 {
	if e := t.slot(client, false); e != nil {
		return e.parent
	}
	return 0
}

// New enters an object under the handle that the client chose. parent may be any related handle: only true owners are
// kept.
func (t *Table) New(kind cuda.Kind, client, real, parent uint64) error {
	if _, ok := t.client.index(client); !ok {
		return &Error{kind, client, "not in the client's region"}
	}
	e := t.slot(client, true)
	if e.kind != cuda.KindNone {
		return &Error{kind, client, "in use by a " + e.kind.String()}
	}
	t.enter(e, kind, client, real, parent)
	return nil
}

func (t *Table) enter(e *entry, kind cuda.Kind, client, real, parent uint64) {
	*e = entry{kind: kind, real: real, parent: t.owner(kind, parent)}
	t.addChild(e.parent, client)
	t.byReal[reality{kind, real}] = client
	t.live++
}

func (t *Table) addChild(parent, child uint64) {
	if parent == 0 {
		return
	}
	if t.children[parent] == nil {
		t.children[parent] = map[uint64]struct{}{}
	}
	t.children[parent][child] = struct{}{}
}

func (t *Table) removeChild(parent, child uint64) {
	if siblings := t.children[parent]; siblings != nil {
		delete(siblings, child)
		if len(siblings) == 0 {
			delete(t.children, parent)
		}
	}
}

// Tie lets a handle end with another one as well as with its parent: what a library has in a context ends with either.
func (t *Table) Tie(client, other uint64) {
	e := t.slot(client, false)
	if e == nil || e.kind == cuda.KindNone || e.second != 0 || other == e.parent || t.Kind(other) == cuda.KindNone {
		return
	}
	e.second = other
	t.addChild(other, client)
}

// owners says which kinds end together with which.
var owners = map[cuda.Kind][]cuda.Kind{
	cuda.KindStream:    {cuda.KindContext},
	cuda.KindEvent:     {cuda.KindContext},
	cuda.KindModule:    {cuda.KindContext, cuda.KindLibrary},
	cuda.KindFunction:  {cuda.KindModule, cuda.KindKernel},
	cuda.KindKernel:    {cuda.KindLibrary},
	cuda.KindGraphNode: {cuda.KindGraph},
	cuda.KindGraph:     {cuda.KindGraphNode},
	cuda.KindArray:     {cuda.KindMipmappedArray},
}

// owner is parent when that kind owns the new one, parent's owner when both are of one kind (a dependency of a node
// lies in its graph).
func (t *Table) owner(kind cuda.Kind, parent uint64) uint64 {
	e := t.slot(parent, false)
	if e == nil || e.kind == cuda.KindNone {
		return 0
	}
	if slices.Contains(owners[kind], e.kind) {
		return parent
	}
	if e.kind == kind && kind == cuda.KindGraphNode {
		return e.parent
	}
	return 0
}

// Client finds the client handle of a driver's value, or mints one in the server region; 0 for 0, and when the region
// is full.
func (t *Table) Client(kind cuda.Kind, real, parent uint64) uint64 {
	if real == 0 {
		return 0
	}
	if c, ok := t.byReal[reality{kind, real}]; ok {
		return c
	}
	var i uint64
	switch {
	case len(t.free) > 0:
		i, t.free = t.free[0], t.free[1:]
	case t.next < t.server.Slots:
		i = t.next
		t.next++
	default:
		return 0
	}
	c := t.server.Base + i*SlotBytes
	t.enter(t.slot(c, true), kind, c, real, parent)
	return c
}

// Find gives the client handle of a driver's value if there is one.
func (t *Table) Find(kind cuda.Kind, real uint64) (uint64, bool) {
	c, ok := t.byReal[reality{kind, real}]
	return c, ok
}

// Rebind lets a handle stand for another object of its kind.
func (t *Table) Rebind(client, real uint64) {
	e := t.slot(client, false)
	if e == nil || e.kind == cuda.KindNone {
		return
	}
	if t.byReal[reality{e.kind, e.real}] == client {
		delete(t.byReal, reality{e.kind, e.real})
	}
	e.real = real
	t.byReal[reality{e.kind, real}] = client
}

// Delete forgets a handle and everything that ends with it. It is no error that there is none.
func (t *Table) Delete(kind cuda.Kind, client uint64) {
	e := t.slot(client, false)
	if e == nil || e.kind == cuda.KindNone || !fits(kind, e.kind) {
		return
	}
	t.end([]uint64{client})
}

// end forgets handles and all below them. A list instead of recursion: the depth is in the client's hands.
func (t *Table) end(doomed []uint64) {
	for len(doomed) > 0 {
		c := doomed[len(doomed)-1]
		doomed = doomed[:len(doomed)-1]
		if t.Kind(c) == cuda.KindNone {
			continue // it was below two of them
		}
		for child := range t.children[c] {
			doomed = append(doomed, child)
		}
		delete(t.children, c)
		t.remove(c)
	}
}

func (t *Table) remove(client uint64) {
	e := t.slot(client, false)
	if t.byReal[reality{e.kind, e.real}] == client {
		delete(t.byReal, reality{e.kind, e.real})
	}
	t.removeChild(e.parent, client)
	t.removeChild(e.second, client)
	t.endNumbers(client)
	*e = entry{}
	t.live--
	if i, ok := t.server.index(client); ok {
		t.free = append(t.free, i)
	}
}

// Len is the number of live handles.
func (t *Table) Len() int { return t.live }

// Each calls f for every live handle of a kind, in no order. f must not change the table.
func (t *Table) Each(kind cuda.Kind, f func(client, real uint64)) {
	for which, base := range []uint64{t.client.Base, t.server.Base} {
		for number, page := range t.pages[which] {
			if page == nil {
				continue
			}
			for i := range page {
				if e := &page[i]; e.kind == kind {
					f(base+uint64(number*pageSlots+i)*SlotBytes, e.real)
				}
			}
		}
	}
}
