package executor

import (
	"encoding/binary"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// counter is a sharer that numbers what it is given.
type counter struct {
	Sharer
	last uint64
	kept map[Token]Value
}

func (c *counter) PublishValue(v Value) (t Token, err error) {
	c.last++
	binary.LittleEndian.PutUint64(t[:], c.last)
	c.kept[t] = v
	return t, nil
}

func (c *counter) Withdraw(t Token) { delete(c.kept, t) }

// The same value has the same token, and of too many the oldest goes.
func TestTokens(t *testing.T) {
	c := &counter{kept: make(map[Token]Value)}
	tok := tokens{sharer: c}
	value := func(i int) (v Value) {
		v.Kind = cuda.KindIpcMemHandle
		binary.LittleEndian.PutUint64(v.Bytes[:], uint64(i))
		return v
	}
	publish := func(i int) Token {
		got, err := tok.publish(value(i))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := publish(0)
	if again := publish(0); again != first {
		t.Errorf("the same value has the tokens %v and %v", first, again)
	}
	other := value(0)
	other.Kind = cuda.KindIpcEventHandle
	if got, err := tok.publish(other); err != nil || got == first {
		t.Errorf("an event has the token of memory: %v, %v", got, err)
	}
	for i := 1; i < MaxValues+10; i++ {
		publish(i)
	}
	if len(c.kept) != MaxValues || len(tok.of) != MaxValues || len(tok.order) != MaxValues {
		t.Errorf("%d values are kept, %d known, %d in order, want %d", len(c.kept), len(tok.of), len(tok.order), MaxValues)
	}
	if _, ok := c.kept[first]; ok {
		t.Error("the oldest is still kept")
	}
	if again := publish(0); again == first {
		t.Error("what was withdrawn has its old token")
	}
}
