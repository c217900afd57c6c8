package slurm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Errors of taking a lease.
var (
	ErrNoPlace = errors.New("no server has a place")
	errFull    = errors.New("all places are taken")
)

// Lease is one of a server's, as scuda lease list --json prints it.
type Lease struct {
	ID         string    `json:"id"`
	Label      string    `json:"label"`
	GPUs       []string  `json:"gpus"`
	Created    time.Time `json:"created"`
	Expires    time.Time `json:"expires"`
	Credential string    `json:"credential,omitempty"` // of a new one
}

// label is how the leases of a job are called, on whatever node, and by what scuda usage adds up what it used.
func label(cluster string, job uint32) string {
	return prefix(cluster) + strconv.FormatUint(uint64(job), 10)
}

// prefix is how the labels of all leases of a cluster begin.
func prefix(cluster string) string { return "slurm/" + cluster + "/" }

// jobOf is the job of a lease of the cluster.
func jobOf(cluster, label string) (uint32, bool) {
	number, ok := strings.CutPrefix(label, prefix(cluster))
	id, err := strconv.ParseUint(number, 10, 32)
	return uint32(id), ok && err == nil
}

// scuda runs a verb of scuda lease on a server.
func (s *Site) scuda(ctx context.Context, v *Server, answer any, verb string, args ...string) error {
	words := []string{"lease", verb}
	if v.Admin != "" {
		words = append(words, "--admin", v.Admin)
	} else {
		words = append(words, "--server", v.Address)
	}
	var env []string
	for name, value := range s.Environment {
		env = append(env, name+"="+value)
	}
	for name, value := range v.trust() {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	out, err := output(ctx, env, s.Scuda, append(append(words, "--json"), args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("%s lease %s: %w", nameOf(s.Scuda), verb, err)
	}
	return nil
}

// trust are the settings by which a client knows the server.
func (v *Server) trust() map[string]string {
	m := map[string]string{}
	if v.Fingerprint != "" {
		m["SCUDA_FINGERPRINT"] = v.Fingerprint
	}
	if v.CA != "" {
		m["SCUDA_CA"] = v.CA
	}
	return m
}

// leases are those of the cluster that a server has.
func (s *Site) leases(ctx context.Context, v *Server, cluster string) ([]Lease, error) {
	var list []Lease
	err := s.scuda(ctx, v, &list, "list")
	return slices.DeleteFunc(list, func(l Lease) bool { return !strings.HasPrefix(l.Label, prefix(cluster)) }), err
}

func (s *Site) revoke(ctx context.Context, v *Server, id, reason string) error {
	var done []struct{}
	err := s.scuda(ctx, v, &done, "revoke", "--reason", reason, id)
	if err != nil && strings.Contains(err.Error(), "there is no such lease") { // it expired, or somebody was faster
		return nil
	}
	return err
}

// wish is what somebody wants of a server.
type wish struct {
	cluster string
	job     uint32
	tenant  string
	gpus    int
	lasts   time.Duration
}

// admitted says which leases have a place on a server: the oldest first, and whoever finds too few left is passed. All
// who look at the same list say the same, so two that come at once do not both go away.
func admitted(list []Lease, places int) map[string]bool {
	slices.SortFunc(list, func(a, b Lease) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	in := map[string]bool{}
	for _, l := range list {
		if n := len(l.GPUs); n <= places {
			places -= n
			in[l.ID] = true
		}
	}
	return in
}

// left is how many places a server has left.
func left(list []Lease, places int) int {
	for _, l := range list {
		places -= len(l.GPUs)
	}
	return places
}

// take takes a lease on a server, if there is a place.
func (s *Site) take(ctx context.Context, v *Server, w *wish) (*Lease, error) {
	list, err := s.leases(ctx, v, w.cluster)
	if err != nil {
		return nil, err
	}
	if n := left(list, v.Places); n < w.gpus {
		return nil, fmt.Errorf("%w: %d of %d are left, and %d are wanted", errFull, max(0, n), v.Places, w.gpus)
	}
	args := []string{"--tenant", w.tenant, "--for", w.lasts.String(), "--gpus", strconv.Itoa(w.gpus),
		"--label", label(w.cluster, w.job)}
	if s.Memory != "" {
		bytes, err := total(s.Memory, w.gpus)
		if err != nil {
			return nil, err
		}
		args = append(args, "--memory", bytes)
	}
	if s.Share > 0 {
		args = append(args, "--share", strconv.FormatUint(uint64(s.Share), 10))
	}
	if s.Class != "" {
		args = append(args, "--class", s.Class)
	}
	var l Lease
	if err := s.scuda(ctx, v, &l, "create", args...); err != nil {
		return nil, err
	}
	// Nobody held the place between the two questions, so others may have come.
	list, err = s.leases(ctx, v, w.cluster)
	if err == nil && !admitted(list, v.Places)[l.ID] {
		err = fmt.Errorf("%w: another job was faster", errFull)
	}
	if err != nil {
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return nil, errors.Join(err, s.revoke(c, v, l.ID, "there was no place"))
	}
	return &l, nil
}

// total is the size of so many GPUs' memory.
func total(each string, gpus int) (string, error) {
	digits := strings.TrimRight(each, "BKMGTi")
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return "", fmt.Errorf("%w: memory-per-gpu: %.40q", ErrSite, each)
	}
	return strconv.FormatUint(n*uint64(gpus), 10) + each[len(digits):], nil
}

// again is how soon servers that were full are asked again: a job's place comes free a moment after its licence.
const again = 500 * time.Millisecond

// place takes a lease on the first server that has a place, in the order of the site's file. A server that does not
// answer gets its part of the time, and is not asked again.
func (s *Site) place(ctx context.Context, w *wish) (*Server, *Lease, error) {
	each := time.Duration(s.Timeout) / time.Duration(len(s.Servers)+1)
	dead := map[int]error{}
	for {
		var why []error
		full := false
		for i := range s.Servers {
			v := &s.Servers[i]
			if dead[i] == nil {
				c, cancel := context.WithTimeout(ctx, each)
				l, err := s.take(c, v, w)
				cancel()
				if err == nil {
					return v, l, nil
				}
				err = fmt.Errorf("%s: %w", v.Address, err)
				if !errors.Is(err, errFull) {
					dead[i] = err
				}
				full = full || errors.Is(err, errFull) && v.Places >= w.gpus
				why = append(why, err)
			} else {
				why = append(why, dead[i])
			}
		}
		err := fmt.Errorf("%w for %d GPUs: %s", ErrNoPlace, w.gpus, oneLine(errors.Join(why...).Error()))
		if !full {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, err
		case <-time.After(again):
		}
	}
}
