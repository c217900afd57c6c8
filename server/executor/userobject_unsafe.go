package executor

import (
	"time"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// userObject: cuUserObjectCreate. The destructor asks the client to run the program's; it must not hold up the call
// of the driver in which the last reference goes, so releaseObjects waits for it instead.
func (g *graphs) userObject(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.UserObject](c)
	if err != nil {
		return 0, err
	}
	registration := p.Registration
	var hook cuda.CUDA_HOST_NODE_PARAMS
	hook = g.gpu.HostNode(func() {
		g.destructors.Add(1)
		go func() {
			defer g.destructors.Add(-1)
			g.gpu.DropNode(hook) // which has begun, and comes once
			if err := g.callback.run(registration, false, 0); err != nil {
				g.loop.clientFailed("run the destructor of a user object", err)
			}
		}()
	})
	object := alloc[cuda.CUuserObject](&g.arena)
	r := g.gpu.CuUserObjectCreate(object, pointerAt(hook.UserData), pointerAt(hook.Fn), p.References, p.Flags)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	return r, g.table.New(cuda.KindUserObject, p.Object, uint64(*object), 0)
}

// pointerAt is an address of the driver's or of C's, not of Go memory.
func pointerAt(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// releaseObjects carries out a call that may drop the last reference of a user object, and lets its destructor end
// before the answer.
func (g *graphs) releaseObjects(c *command) (cuda.CUresult, error) {
	r, err := g.loop.general(c)
	g.freeEndedEnds()
	if g.destructors.Load() == 0 {
		return r, err
	}
	reply := append([]byte(nil), c.reply...)
	for began := time.Now(); g.destructors.Load() > 0; {
		if err := g.loop.napAfter(time.Since(began)); err != nil {
			return 0, err
		}
	}
	c.reply = reply
	return r, err
}
