package lease

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/config"
)

// ErrTerms is wrapped by complaints about terms that nobody can have.
var ErrTerms = errors.New("bad terms")

// Class says whose work goes first where there is not enough for all.
type Class int8

// The classes. Normal is the zero value.
const (
	Low Class = iota - 1
	Normal
	High
)

// Classes are the words for them, the lowest first.
var Classes = []string{"low", "normal", "high"}

func (c Class) String() string {
	if i := int(c - Low); i >= 0 && i < len(Classes) {
		return Classes[i]
	}
	return strconv.Itoa(int(c))
}

// ParseClass reads a class.
func ParseClass(s string) (Class, error) {
	i := slices.Index(Classes, s)
	if i < 0 {
		return Normal, fmt.Errorf("%w: class: %.40q is none; write low, normal or high", ErrTerms, s)
	}
	return Class(i) + Low, nil
}

// MarshalText and UnmarshalText write and read the words.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText is described at MarshalText.
func (c *Class) UnmarshalText(b []byte) (err error) {
	*c, err = ParseClass(string(b))
	return err
}

// Shares: the weight of who says nothing, and the largest.
const (
	UsualShare = 100
	MostShare  = 10_000
)

// ParseShare reads a weight.
func ParseShare(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n < 1 || n > MostShare {
		return 0, fmt.Errorf("%w: share: %.40q is no whole number of 1 to %d", ErrTerms, s, MostShare)
	}
	return uint32(n), nil
}

// Terms are what sessions may use, and what they are worth beside others. [Usual] are those of who has no others.
type Terms struct {
	GPUs     []string    `json:"gpus"`         // UUIDs of those that its sessions see; none: all
	Memory   config.Size `json:"memory_bytes"` // of the GPUs, for its sessions together; 0: no quota but the tenant's
	Sessions uint32      `json:"sessions"`     // of CUDA at once; 0: as many as the tenant may have
	Share    uint32      `json:"share"`        // a weight among those of the same class
	Class    Class       `json:"class"`
}

// Usual gives the terms of a tenant for which nothing is said.
func Usual() Terms { return Terms{Share: UsualShare} }

// MostGPUs is how many GPUs terms can name.
const MostGPUs = 64

func (t *Terms) check() error {
	switch {
	case t.Share < 1 || t.Share > MostShare:
		return fmt.Errorf("%w: a share of %d; it is 1 to %d", ErrTerms, t.Share, MostShare)
	case t.Class < Low || t.Class > High:
		return fmt.Errorf("%w: class %d", ErrTerms, t.Class)
	case len(t.GPUs) > MostGPUs:
		return fmt.Errorf("%w: %d GPUs; %d are the most", ErrTerms, len(t.GPUs), MostGPUs)
	}
	for i, u := range t.GPUs {
		if !isUUID(u) || slices.Contains(t.GPUs[:i], u) {
			return fmt.Errorf("%w: %.60q is no GPU's UUID, or stands there twice", ErrTerms, u)
		}
	}
	return nil
}

// UUID writes a GPU's as the driver's tools do.
func UUID(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// isUUID says whether a text is what [UUID] writes, or that of an instance of MIG.
func isUUID(s string) bool {
	if digits, ok := strings.CutPrefix(s, "MIG-"); ok {
		s = "GPU-" + digits
	}
	digits, ok := strings.CutPrefix(s, "GPU-")
	b, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
	return ok && err == nil && len(b) == 16 && UUID([16]byte(b)) == s
}

// ParseUUIDs reads UUIDs with commas between them.
func ParseUUIDs(s string) ([]string, error) {
	list := strings.Split(s, ",")
	t := Terms{GPUs: list, Share: UsualShare}
	if err := t.check(); err != nil {
		return nil, err
	}
	return list, nil
}
