package executor

import (
	"errors"

	"scuda.dev/scuda/api/cuda"
)

// Handles of memory and events for other processes (CUipcMemHandle and its like) are bytes from which a driver finds
// what they name, and no driver should read bytes of a client's making. So clients get tokens; the supervisor keeps
// what each stands for. The same bytes get the same token, because programs compare handles.

// Value is what the driver calls a thing for other processes.
type Value struct {
	Kind  cuda.Kind
	Bytes [64]byte
}

// MaxValues is how many values a session may have published at a time; the oldest gives way to the next.
const MaxValues = 16384

// tokens are the values that a session published.
type tokens struct {
	sharer Sharer // nil: nothing can be shared with other sessions
	of     map[Value]Token
	order  []Value // the oldest first
}

// publish gives the token of a value.
func (t *tokens) publish(v Value) (Token, error) {
	if token, ok := t.of[v]; ok {
		return token, nil
	}
	if len(t.order) == MaxValues {
		t.sharer.Withdraw(t.of[t.order[0]])
		delete(t.of, t.order[0])
		t.order = t.order[1:]
	}
	token, err := t.sharer.PublishValue(v)
	if err != nil {
		return token, err
	}
	if t.of == nil {
		t.of = make(map[Value]Token)
	}
	t.of[v] = token
	t.order = append(t.order, v)
	return token, nil
}

// Hide puts a token for the client in the place of what the driver gave.
func (h *handles) Hide(kind cuda.Kind, value *[64]byte) bool {
	if h.tokens.sharer == nil {
		return false
	}
	token, err := h.tokens.publish(Value{kind, *value})
	if err != nil {
		h.b.log.Error("cannot share with other sessions", "what", kind, "error", err)
		return false
	}
	*value = [64]byte{}
	copy(value[:], token[:])
	return true
}

// Mean puts what a token of the client's stands for in its place.
func (h *handles) Mean(kind cuda.Kind, value *[64]byte) bool {
	if h.tokens.sharer == nil || [48]byte(value[16:]) != [48]byte{} {
		return false
	}
	v, err := h.tokens.sharer.FetchValue(Token(value[:16]))
	if err != nil && !errors.Is(err, ErrNoShare) {
		h.b.log.Error("cannot get what another session shares", "what", kind, "error", err)
	}
	if err != nil || v.Kind != kind {
		return false
	}
	*value = v.Bytes
	return true
}
