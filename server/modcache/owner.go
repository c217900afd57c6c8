package modcache

import (
	"container/heap"
	"container/list"
	"sync"
)

// owner is a tenant's part of the cache.
type owner struct {
	folder  string // below the cache's
	images  map[Hash]*entry
	order   list.List // of *entry; what was used last is in front
	charged int64
	place   int           // in owners
	slots   chan struct{} // holds one element for each image that is being read or stored
}

// entry is an image of the index. Its fields are guarded by Cache.mu but for those that never change.
type entry struct {
	owner  *owner
	hash   Hash
	size   int64
	charge int64

	used    *list.Element // in owner.order; nil: it has been evicted
	touched int64         // when its file's time was set, in seconds

	memory  *sealed // nil: it lies on the disk only
	loading sync.Mutex
}

// owners are all that have images, as a heap: the one with the largest part is first.
type owners []*owner

func (o owners) Len() int           { return len(o) }
func (o owners) Less(i, j int) bool { return o[i].charged > o[j].charged }
func (o owners) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].place, o[j].place = i, j
}

// Push is of heap.Interface, as Pop is.
func (o *owners) Push(x any) {
	one := x.(*owner)
	one.place = len(*o)
	*o = append(*o, one)
}

// Pop is of heap.Interface.
func (o *owners) Pop() any {
	last := len(*o) - 1
	x := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return x
}

// book changes what an owner is charged for. Cache.mu is held.
func (c *Cache) book(o *owner, charge int64) {
	o.charged += charge
	c.charged += charge
	heap.Fix(&c.owners, o.place)
}

// owner finds a tenant's part, or begins it. Cache.mu is held.
func (c *Cache) owner(folder string) *owner {
	o := c.byFolder[folder]
	if o == nil {
		o = &owner{folder: folder, images: make(map[Hash]*entry), slots: make(chan struct{}, ownerSlots)}
		c.byFolder[folder] = o
		heap.Push(&c.owners, o)
	}
	return o
}
