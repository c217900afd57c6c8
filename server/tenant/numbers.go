package tenant

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"scuda.dev/scuda/internal/atomicfile"
	"scuda.dev/scuda/transport/certificate"
)

// numbersFile holds a line "NAME NUMBER" for each tenant that has had a number.
const numbersFile = "worker-uids"

// ErrNumbers says that a tenant has no number.
var ErrNumbers = errors.New("no user id for the tenant's workers")

// Numbers gives each tenant a number of its own out of a range: the user id of its workers. A tenant that has been seen
// has the same one the next time, also after a restart. It may be asked by many at once.
type Numbers struct {
	path        string // "": they are not kept
	first, last uint32
	log         *slog.Logger

	mu     sync.Mutex
	byName map[string]uint32
	taken  map[uint32]string
	warned bool
}

// OpenNumbers reads those that a folder keeps; without a folder they are forgotten with the server. What lies in the
// folder from another range is not used.
func OpenNumbers(folder string, first, last uint32, log *slog.Logger) (*Numbers, error) {
	n := &Numbers{first: first, last: last, log: log, byName: make(map[string]uint32), taken: make(map[uint32]string)}
	n.take("", first) // of workers that are nobody's
	if folder == "" {
		return n, nil
	}
	n.path = filepath.Join(folder, numbersFile)
	text, err := os.ReadFile(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err == nil {
		err = n.parse(text)
	}
	if err != nil {
		return nil, fmt.Errorf("the user ids of tenants: %s: %w", n.path, err)
	}
	return n, nil
}

func (n *Numbers) parse(text []byte) error {
	if len(text) > maxBytes {
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrFile, len(text), maxBytes)
	}
	for l := range bytes.Lines(text) {
		name, number, ok := strings.Cut(strings.TrimSpace(string(l)), " ")
		v, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil || certificate.CheckName(name) != nil {
			return fmt.Errorf("%w: %.80q is no tenant with a number", ErrFile, l)
		}
		uid := uint32(v)
		_, twice := n.byName[name]
		_, shared := n.taken[uid]
		if uid < n.first || uid > n.last || twice || shared {
			continue
		}
		n.take(name, uid)
	}
	return nil
}

func (n *Numbers) take(name string, uid uint32) { n.byName[name], n.taken[uid] = uid, name }

// Of gives a tenant's number. The empty name's is the first of the range.
func (n *Numbers) Of(name string) (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if uid, ok := n.byName[name]; ok {
		return uid, nil
	}
	size := uint64(n.last-n.first) + 1
	if uint64(len(n.taken)) >= size {
		return 0, fmt.Errorf("%w: all %d of %d-%d are taken; make --worker-uids wider, or remove %s", ErrNumbers, size,
			n.first, n.last, n.path)
	}
	// The name says where to begin, so that servers with one range mostly agree.
	sum := sha256.Sum256([]byte(name))
	at := binary.LittleEndian.Uint64(sum[:8]) % size
	uid := n.first + uint32(at)
	for n.taken[uid] != "" || uid == n.first {
		at = (at + 1) % size
		uid = n.first + uint32(at)
	}
	n.take(name, uid)
	if err := n.keep(); err != nil && !n.warned {
		n.warned = true
		n.log.Warn("the user ids of tenants are not kept: they may be others after a restart", "error", err)
	}
	return uid, nil
}

// keep writes the file anew. n.mu is held.
func (n *Numbers) keep() error {
	if n.path == "" {
		return errors.New("the server has no folder for its state (--state-dir)")
	}
	var text bytes.Buffer
	for name, uid := range n.byName {
		if name != "" {
			fmt.Fprintf(&text, "%s %d\n", name, uid)
		}
	}
	return atomicfile.Replace(n.path, text.Bytes(), 0o600)
}
