package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/atomicfile"
)

// Errors of a book.
var (
	ErrNone    = errors.New("there is no such lease")
	ErrFull    = errors.New("no room for another lease")
	ErrKept    = errors.New("the leases cannot be kept")
	ErrExpired = errors.New("the lease has expired")
	ErrRevoked = errors.New("the lease was revoked")
	ErrTaken   = errors.New("a GPU is leased already")
)

const (
	idBytes  = 8
	sumBytes = sha256.Size

	// prefix is how each credential begins, so that people who find one know what it is.
	prefix = "scuda-lease-"

	// MostTime is how long a lease may last.
	MostTime  = 366 * 24 * time.Hour
	leastTime = time.Second

	remembered = 24 * time.Hour // leases that are over
	lookAgain  = time.Minute    // at the clock: a machine that slept has timers that are late
)

// OverError tells somebody who knows the credential of a lease that it is over.
type OverError struct {
	Lease  Lease
	Kind   error // [ErrExpired] or [ErrRevoked]
	Reason string
	When   time.Time
}

func (e *OverError) Error() string {
	text := "lease " + e.Lease.Name() + " of tenant " + e.Lease.Tenant
	if errors.Is(e.Kind, ErrExpired) {
		text += " has expired at " + e.When.UTC().Format(time.RFC3339)
	} else {
		text += " was revoked at " + e.When.UTC().Format(time.RFC3339)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text + "; ask who gave it to you for another one (scuda lease create)"
}

func (e *OverError) Unwrap() error { return e.Kind }

// Book has the leases of a server. It may be used by many at once.
type Book struct {
	path string // "": they are forgotten with the server

	mu      sync.Mutex
	by      map[string]*record // id
	sums    map[string]*record // SHA-256 of the credential, in hexadecimal digits
	live    int
	changed chan struct{} // closed when leases came
}

// Open reads the book of a file, which need not be there yet; without a path the leases are forgotten with the server.
func Open(path string) (*Book, error) {
	b := &Book{path: path, by: map[string]*record{}, sums: map[string]*record{}, changed: make(chan struct{})}
	if path == "" {
		return b, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // where nothing can be kept, nothing was
		return b, nil
	}
	if err == nil {
		err = b.read(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; repair it, or move it away: then its leases are gone", path, err)
	}
	return b, nil
}

// read takes in what [Book.text] gave.
func (b *Book) read(text []byte) error {
	list, err := parseFile(text)
	for _, r := range list {
		b.enter(r)
	}
	return err
}

// text is what is kept of all leases. b.mu is held.
func (b *Book) text() ([]byte, error) {
	list := make([]*record, 0, len(b.by))
	for _, r := range b.by {
		list = append(list, r)
	}
	slices.SortFunc(list, func(x, y *record) int { return strings.Compare(x.ID, y.ID) })
	return appendFile(nil, list)
}

// enter takes a lease in. b.mu is held, or nobody has the book yet.
func (b *Book) enter(r *record) {
	b.by[r.ID], b.sums[r.Credential] = r, r
	if r.Over == "" {
		b.live++
	}
}

func (b *Book) remove(r *record) {
	delete(b.by, r.ID)
	delete(b.sums, r.Credential)
	if r.Over == "" {
		b.live--
	}
}

func random(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func sumOf(credential []byte) string {
	sum := sha256.Sum256(credential)
	return hex.EncodeToString(sum[:])
}

// Grant makes a lease that lasts for a while, and its credential, which nobody can ask for again. The error wraps
// [ErrTerms], [ErrFull], [ErrTaken] or [ErrKept].
func (b *Book) Grant(l Lease, lasts time.Duration) (Lease, string, error) {
	if lasts < leastTime || lasts > MostTime {
		return Lease{}, "", fmt.Errorf("%w: a lease of %v; it lasts %v to %v", ErrTerms, lasts, leastTime, MostTime)
	}
	now := time.Now()
	l.ID, l.Created, l.GPUs = random(idBytes), now.UTC().Round(0), append([]string{}, l.GPUs...)
	l.Expires = l.Created.Add(lasts)
	credential := prefix + random(sumBytes)
	r := &record{Lease: l, Credential: sumOf([]byte(credential)), MadeBy: l.Maker}
	if err := r.check(); err != nil {
		return Lease{}, "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(now)
	if b.live >= MostLeases {
		return Lease{}, "", fmt.Errorf("%w: there are %d; revoke some (scuda lease revoke)", ErrFull, b.live)
	}
	if err := b.free(&l); err != nil {
		return Lease{}, "", err
	}
	b.enter(r)
	if err := b.keep(); err != nil {
		b.remove(r)
		return Lease{}, "", err
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return l, credential, nil
}

// free says whether a lease can be made beside those that hold: no other one has the GPUs of a lease that has them to
// itself. Without GPUs a lease has all of them. b.mu is held.
func (b *Book) free(l *Lease) error {
	for _, r := range b.by {
		if !l.Exclusive && !r.Exclusive {
			continue
		}
		if _, err := b.stateOf(r); err != nil {
			continue
		}
		if len(l.GPUs) == 0 || len(r.GPUs) == 0 {
			return fmt.Errorf("%w: one of the two is to have it to itself, and the other one has all", ErrTaken)
		}
		for _, uuid := range r.GPUs {
			if slices.Contains(l.GPUs, uuid) {
				return fmt.Errorf("%w: %s, and one of the two is to have it to itself", ErrTaken, uuid)
			}
		}
	}
	return nil
}

// Renew has a lease last for so long from now, if it would end before. The error is [ErrNone], or wraps [ErrTerms] or
// [ErrKept]: then it lasts as long as before.
func (b *Book) Renew(id string, lasts time.Duration) (Lease, error) {
	if lasts < leastTime || lasts > MostTime {
		return Lease{}, fmt.Errorf("%w: a lease of %v; it lasts %v to %v", ErrTerms, lasts, leastTime, MostTime)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.by[id]
	if _, err := b.stateOf(r); err != nil {
		return Lease{}, ErrNone
	}
	before := r.Expires
	if until := time.Now().UTC().Round(0).Add(lasts); until.After(before) {
		r.Expires = until
	}
	if err := b.keep(); err != nil {
		r.Expires = before
		return Lease{}, err
	}
	return r.Lease, nil
}

// Find gives the lease of a credential. The error is [ErrNone] where there is none, and an [*OverError] where it is
// over. It looks for the credential's hash: its time tells nothing of other credentials.
func (b *Book) Find(credential []byte) (Lease, error) {
	sum := sumOf(credential)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stateOf(b.sums[sum])
}

// Get gives the lease with an id, with the errors of [Book.Find].
func (b *Book) Get(id string) (Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stateOf(b.by[id])
}

// stateOf says whether a lease holds. b.mu is held.
func (b *Book) stateOf(r *record) (Lease, error) {
	switch {
	case r == nil:
		return Lease{}, ErrNone
	case r.Over == revoked:
		return r.Lease, &OverError{r.Lease, ErrRevoked, r.Reason, r.When}
	case r.Over == expired || !time.Now().Before(r.Expires):
		return r.Lease, &OverError{r.Lease, ErrExpired, "", r.Expires}
	}
	return r.Lease, nil
}

// each calls do for each lease that holds, in no order, with b.mu held.
func (b *Book) each(do func(*Lease)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.by {
		if _, err := b.stateOf(r); err == nil {
			do(&r.Lease)
		}
	}
}

// Leases are those that hold, the oldest first.
func (b *Book) Leases() (list []Lease) {
	b.each(func(l *Lease) { list = append(list, *l) })
	slices.SortFunc(list, func(x, y Lease) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID)) })
	return list
}

// ByTenant is how many leases hold, by tenant.
func (b *Book) ByTenant() map[string]int {
	n := map[string]int{}
	b.each(func(l *Lease) { n[l.Tenant]++ })
	return n
}

// Only says whether no lease that holds is another tenant's. It is asked for everybody who waits for a place.
func (b *Book) Only(tenant string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.by {
		if r.Tenant == tenant {
			continue
		}
		if _, err := b.stateOf(r); err == nil {
			return false
		}
	}
	return true
}

// Taken is what has been leased of each GPU: the shares of those that name it.
func (b *Book) Taken() map[string]uint64 {
	n := map[string]uint64{}
	b.each(func(l *Lease) {
		for _, uuid := range l.GPUs {
			n[uuid] += uint64(l.Share)
		}
	})
	return n
}

// Revoke ends a lease at once. Its sessions are the caller's to end. The error is [ErrNone], or wraps [ErrKept]: then
// the lease has ended, and would hold again after a restart.
func (b *Book) Revoke(id, reason string) (Lease, error) {
	if err := checkText("reason", reason, mostReason); err != nil {
		return Lease{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.by[id]
	if _, err := b.stateOf(r); err != nil {
		return Lease{}, ErrNone
	}
	b.end(r, revoked, reason, time.Now())
	return r.Lease, b.keep()
}

func (b *Book) end(r *record, kind how, reason string, when time.Time) {
	r.Over, r.Reason, r.When = kind, reason, when.UTC().Round(0)
	b.live--
}

// forget drops what has been over for long, and the oldest of what there is too much. b.mu is held.
func (b *Book) forget(now time.Time) {
	if len(b.by) == b.live {
		return
	}
	var over []*record
	for _, r := range b.by {
		switch {
		case r.Over == "":
		case now.Sub(r.When) >= remembered:
			b.remove(r)
		default:
			over = append(over, r)
		}
	}
	slices.SortFunc(over, func(x, y *record) int { return x.When.Compare(y.When) })
	for _, r := range over[:max(0, len(over)-mostOver)] {
		b.remove(r)
	}
}

// expire ends the leases whose time is over, and says when to look again.
func (b *Book) expire() (over []OverError, next <-chan struct{}, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	wait = lookAgain
	for _, r := range b.by {
		if r.Over != "" {
			continue
		}
		if left := r.Expires.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		b.end(r, expired, "", r.Expires)
		over = append(over, OverError{r.Lease, ErrExpired, "", r.Expires})
	}
	if len(over) > 0 {
		b.forget(now)
		_ = b.keep() // their time is in the file: they are over after a restart, too
	}
	return over, b.changed, wait
}

// Watch calls over for each lease whose time is up, until ctx ends.
func (b *Book) Watch(ctx context.Context, over func(*OverError)) {
	for {
		list, changed, wait := b.expire()
		for i := range list {
			over(&list[i])
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-changed:
			t.Stop()
		case <-t.C:
		}
	}
}

// keep writes the file anew. b.mu is held.
func (b *Book) keep() error {
	if b.path == "" {
		return nil
	}
	if err := b.write(); err != nil {
		return fmt.Errorf("%w: %w; see to it that the server can write its state folder (--state-dir)", ErrKept, err)
	}
	return nil
}

// write replaces the file by one that is on the disk as a whole: a lease that was revoked does not come back.
func (b *Book) write() error {
	text, err := b.text()
	if err != nil {
		return err
	}
	return atomicfile.Replace(b.path, text, 0o600)
}

// Kept says whether leases outlive the server.
func (b *Book) Kept() bool { return b.path != "" }
