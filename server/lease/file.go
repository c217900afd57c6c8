package lease

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"

	"scuda.dev/scuda/transport/certificate"
)

// ErrFile is a file of leases that cannot be used.
var ErrFile = errors.New("unusable file of leases")

// Bounds of what a book holds, and its file.
const (
	MostLeases = 4096
	mostOver   = 4096 // of those that are over
	mostBytes  = 32 << 20
	mostLabel  = 100
	mostReason = 400
	mostMaker  = 400
)

// Lease says what sessions of a tenant may use until it expires.
type Lease struct {
	ID     string `json:"id"`
	Label  string `json:"label"` // what its maker calls it
	Tenant string `json:"tenant"`
	Terms
	Exclusive bool      `json:"exclusive,omitempty"` // no other lease has its GPUs
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	// Maker is what tells the tenant's credential from others with which the tenant made it itself; "": an administrator
	// made it. It is nobody's business but the server's.
	Maker string `json:"-"`
}

// Name is how people are told of a lease.
func (l *Lease) Name() string {
	if l.Label == "" {
		return l.ID
	}
	return fmt.Sprintf("%s (%s)", l.ID, l.Label)
}

func (l *Lease) check() error {
	id, err := hex.DecodeString(l.ID)
	switch {
	case err != nil || len(id) != idBytes:
		return fmt.Errorf("%w: %.40q is no lease's id", ErrTerms, l.ID)
	case !l.Expires.After(l.Created):
		return fmt.Errorf("%w: it ends before it begins", ErrTerms)
	case l.Exclusive && len(l.GPUs) == 0:
		return fmt.Errorf("%w: a lease that has GPUs to itself says which; say how many (gpus)", ErrTerms)
	}
	if err = certificate.CheckName(l.Tenant); err != nil {
		return fmt.Errorf("%w: tenant: %w", ErrTerms, err)
	}
	return cmp.Or(checkText("label", l.Label, mostLabel), l.Terms.check())
}

// checkText refuses what does not fit on one line of a terminal.
func checkText(what, s string, most int) error {
	if len(s) > most || !utf8.ValidString(s) {
		return fmt.Errorf("%w: a %s of %d bytes, or no text; write %d bytes of UTF-8 at most", ErrTerms, what, len(s), most)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%w: the %s has a character that cannot be printed", ErrTerms, what)
		}
	}
	return nil
}

// record is a lease as its book has it.
type record struct {
	Lease
	Credential string    `json:"credential_sha256"`
	MadeBy     string    `json:"made_by,omitempty"` // the maker
	Over       how       `json:"over,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	When       time.Time `json:"when,omitzero"` // it was over
}

// how says how a lease came to its end.
type how string

const (
	expired how = "expired"
	revoked how = "revoked"
)

func (r *record) check() error {
	sum, err := hex.DecodeString(r.Credential)
	switch {
	case err != nil || len(sum) != sumBytes:
		return errors.New("credential_sha256 wants 64 hexadecimal digits")
	case r.Over != "" && r.Over != expired && r.Over != revoked:
		return fmt.Errorf("over: %.40q is neither %s nor %s", r.Over, expired, revoked)
	}
	return cmp.Or(checkText("reason", r.Reason, mostReason), checkText("made_by", r.MadeBy, mostMaker), r.Lease.check())
}

// appendFile appends the text of a file: a lease a line, as JSON.
func appendFile(b []byte, list []*record) ([]byte, error) {
	for _, r := range list {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		b = append(append(b, line...), '\n')
	}
	return b, nil
}

// parseFile reads what [appendFile] has written.
func parseFile(text []byte) (list []*record, err error) {
	if len(text) > mostBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrFile, len(text), mostBytes)
	}
	ids, sums := map[string]bool{}, map[string]bool{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		bad := func(err error) error { return fmt.Errorf("%w: line %d: %w", ErrFile, number, err) }
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r := &record{}
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields() // of a later release: what it means is not known here
		if err := d.Decode(r); err != nil {
			return nil, bad(err)
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return nil, bad(errors.New("something stands behind the lease"))
		}
		if err := r.check(); err != nil {
			return nil, bad(err)
		}
		r.Maker = r.MadeBy
		if ids[r.ID] || sums[r.Credential] {
			return nil, bad(fmt.Errorf("lease %s stands there twice, or has another's credential", r.ID))
		}
		ids[r.ID], sums[r.Credential] = true, true
		if list = append(list, r); len(list) > MostLeases+mostOver {
			return nil, bad(fmt.Errorf("more than %d leases", MostLeases+mostOver))
		}
	}
	return list, nil
}
