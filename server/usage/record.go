package usage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Record is what a session used between two moments, the later of which is when the record was written: at its end,
// and once an hour before. So what sessions used is the sum of their records.
type Record struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Session string    `json:"session"`
	Tenant  string    `json:"tenant"`
	User    string    `json:"user"` // as the client says, like host and program
	Host    string    `json:"host"`
	Program string    `json:"program"`
	Lease   string    `json:"lease,omitempty"` // its id, "": none
	Label   string    `json:"label,omitempty"` // of the lease
	End     string    `json:"end"`             // how the session ended; "": it goes on
	Used
}

// Used is what was used.
type Used struct {
	Seconds   float64 `json:"seconds"`     // that the session was open
	GPU       float64 `json:"gpu_seconds"` // that it used GPUs
	Estimated bool    `json:"estimated"`   // the latter is guessed, by when the session had something to do
	Memory    float64 `json:"memory_byte_seconds"`
	ToDevice  uint64  `json:"copied_to_gpu_bytes"`
	ToHost    uint64  `json:"copied_to_host_bytes"`
	Calls     uint64  `json:"calls"`
	Turn      float64 `json:"turn_seconds"`      // of a GPU, that it got while sessions took turns; a part of GPU
	Waited    float64 `json:"turn_wait_seconds"` // that it waited for its turn
}

// Add adds what somebody else used.
func (u *Used) Add(o Used) {
	u.Seconds += o.Seconds
	u.GPU += o.GPU
	u.Estimated = u.Estimated || o.Estimated
	u.Memory += o.Memory
	u.ToDevice += o.ToDevice
	u.ToHost += o.ToHost
	u.Calls += o.Calls
	u.Turn += o.Turn
	u.Waited += o.Waited
}

// MaxLine is how long a record may be, in bytes.
const MaxLine = 8 << 10

// maxText is how long its texts may be: even where each byte is written as six, all of them fit.
const maxText = 100

// ErrRecord is a line that is no record.
var ErrRecord = errors.New("not a record of usage")

// Append appends a record as a line.
func Append(b []byte, r *Record) ([]byte, error) {
	short := *r
	for _, s := range []*string{&short.Session, &short.Tenant, &short.User, &short.Host, &short.Program, &short.Lease,
		&short.Label, &short.End} {
		*s = clip(*s)
	}
	text, err := json.Marshal(&short)
	if err != nil {
		return b, err
	}
	return append(append(b, text...), '\n'), nil
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for !utf8.ValidString(s) && len(s) > maxText-utf8.UTFMax {
		s = s[:len(s)-1]
	}
	return s
}

// Parse reads a line.
func Parse(line []byte) (*Record, error) {
	if len(line) > MaxLine {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrRecord, len(line), MaxLine)
	}
	var r Record
	if err := json.Unmarshal(bytes.TrimSpace(line), &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	switch {
	case r.Session == "" || r.From.IsZero() || r.To.Before(r.From):
		return nil, fmt.Errorf("%w: it lacks a session or a time", ErrRecord)
	case r.Seconds < 0 || r.GPU < 0 || r.Memory < 0 || r.Turn < 0 || r.Waited < 0:
		return nil, fmt.Errorf("%w: something negative was used", ErrRecord)
	}
	return &r, nil
}
