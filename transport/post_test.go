package transport

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// What is posted while there is no socket goes over the next one, and nobody waits for that. A full window is waited
// for.
func TestPostWithoutSocket(t *testing.T) {
	n := &network{t: t, next: func() int { return -1 }}
	ends := func(c net.Conn) *Resumable {
		d, err := newDialled(c, "there")
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewResumable(d, Windows{Own: 4096, Peer: 4096}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	near, far := n.pair()
	first := near.LocalAddr().String()
	a, b := ends(near), ends(far)
	from, to := Resumed(a), Resumed(b)
	if got := from.LocalAddr().String(); got != first {
		t.Errorf("the line says that it is at %s, not %s", got, first)
	}
	message := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 1000) }
	h := MessageHeader{Type: MsgPathCredit}
	if err := from.Post(h, message(0)); err != nil {
		t.Fatal(err)
	}
	a.Lose(io.ErrUnexpectedEOF)
	b.Lose(io.ErrUnexpectedEOF)
	for i := 1; i < 3; i++ { // it would wait here
		if err := from.Post(h, message(i)); err != nil {
			t.Fatal(err)
		}
	}
	posted := make(chan error)
	go func() {
		var err error
		for i := 3; i < 8; i++ { // for some of which there is no room
			err = errors.Join(err, from.Post(h, message(i)))
		}
		posted <- err
	}()
	got, err := a.Detach()
	their, ferr := b.Detach()
	if err != nil || ferr != nil {
		t.Fatal(err, ferr)
	}
	near, far = n.pair()
	second := near.LocalAddr().String()
	if err := errors.Join(a.Attach(near, their), b.Attach(far, got)); err != nil {
		t.Fatal(err)
	}
	if got := from.LocalAddr().String(); got != second {
		t.Errorf("behind the change the line says that it is at %s, not %s", got, second)
	}
	all := make([]byte, MessageHeaderSize+1000)
	for i := range 8 {
		if err := to.ReadFull(all); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(all[MessageHeaderSize:], message(i)) {
			t.Fatalf("in the place of message %d came %d", i, all[MessageHeaderSize])
		}
	}
	if err := <-posted; err != nil {
		t.Error(err)
	}
	from.Shutdown()
	if err := from.Post(h, nil); err == nil {
		t.Error("a message was posted behind the end")
	}
	_, _ = from.Close(), to.Close()
	n.all.Wait()
}

// Posted messages arrive once and in order, wherever sockets break.
func TestPostOverBrokenSockets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	n := newNetwork(t, Windows{Own: 64 << 10, Peer: 64 << 10}, false, func() int {
		mu.Lock()
		defer mu.Unlock()
		return 200 + random.IntN(3000)
	})
	const messages = 4000
	var users sync.WaitGroup
	post := func(l *Line) {
		for i := range messages {
			if err := l.Post(MessageHeader{Type: MsgPathCredit, Seq: uint64(i)}, make([]byte, i%64)); err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
		}
	}
	read := func(l *Line) {
		head, body := make([]byte, MessageHeaderSize), make([]byte, 64)
		for i := range messages {
			err := l.ReadFull(head)
			h, _, perr := ParseMessage(head)
			if err != nil || perr != nil || h.Seq != uint64(i) || int(h.Len) != i%64 {
				t.Errorf("in the place of message %d came %+v (%v, %v)", i, h, err, perr)
				return
			}
			if err := l.ReadFull(body[:Pad(i%64)]); err != nil {
				t.Error(err)
				return
			}
		}
	}
	a, b := Resumed(n.near), Resumed(n.far)
	for _, l := range []*Line{a, b} {
		users.Go(func() { post(l) })
		users.Go(func() { read(l) })
	}
	users.Wait()
	if n.cuts.Load() < 5 {
		t.Errorf("only %d sockets broke", n.cuts.Load())
	}
}
