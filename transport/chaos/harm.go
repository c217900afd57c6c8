package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Kind is what happens to a connection.
type Kind int

// Kinds of harm.
const (
	None    Kind = iota
	Cut          // both ends are closed in order, or every other time reset
	Half         // the end that sent is reset; the other one is told nothing, and hears nothing more
	Stall        // the bytes wait
	Swallow      // the bytes vanish, and so do all that come behind them; neither end is told
	Corrupt      // a bit is changed
)

var kinds = [...]string{"none", "cut", "half", "stall", "swallow", "corrupt"}

func (k Kind) String() string { return kinds[k] }

// Set reads the name of a kind, as a flag has it.
func (k *Kind) Set(s string) error {
	for i, name := range kinds {
		if s == name && i > 0 {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("it is one of %s", strings.Join(kinds[1:], ", "))
}

// Type is how the help calls the value.
func (Kind) Type() string { return "KIND" }

// Way is a direction, or both.
type Way int

// Ways.
const (
	Up   Way = 1 << iota // from client to server
	Down                 // back
	Both = Up | Down
)

var ways = map[string]Way{"up": Up, "down": Down, "both": Both}

func (w Way) String() string {
	for name, is := range ways {
		if w == is {
			return name
		}
	}
	return "none"
}

// Set reads the name of a way, as a flag has it.
func (w *Way) Set(s string) error {
	way, ok := ways[s]
	if !ok {
		return fmt.Errorf("it is one of up, down, both")
	}
	*w = way
	return nil
}

// Type is how the help calls the value.
func (Way) Type() string { return "WAY" }

// Harm is what happens to one connection, once: behind so many bytes of a direction. The zero value is none.
type Harm struct {
	Kind  Kind
	Way   Way // whose bytes are counted; of Both, those that come first. It also is what stalls, or is swallowed.
	Bytes int
	For   time.Duration // how long a stall is; 0: until the connection ends
}

// Sometimes is the harm of a connection that is cut, or has a bit changed, behind so many bytes of either direction.
func Sometimes(k Kind, bytes func() int) func(int) Harm {
	return func(int) Harm { return Harm{Kind: k, Way: Up << rand.IntN(2), Bytes: bytes()} }
}
